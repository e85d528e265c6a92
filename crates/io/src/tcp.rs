//! TCP sockets as BGP needs them: who may connect, from how far, and with which key.
//!
//! Everything here is non-blocking. It opens, tunes and checks sockets; it neither reads nor writes them, and it
//! knows nothing of BGP messages. Hop limits are GTSM (RFC 5082), keys are TCP MD5 (RFC 2385).
//!
//! Two things happen before a program sees an accepted connection, so they belong to the listening socket: the
//! SYN-ACK leaves with a hop limit that peers with GTSM take ([`reach`]); and the kernel keeps the SYN, so that
//! [`accepted`] can tell from how far it came.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_int, socklen_t};
use socket2::{Domain, Protocol, Socket, Type};
use standfast_core::node::Dial;
use standfast_core::plan::{Secret, Ttl};
use standfast_core::prefix::Prefix;

use crate::netlink::interface_index;

/// The longest key that TCP MD5 takes, in octets.
pub const MAX_KEY: usize = libc::TCP_MD5SIG_MAXKEYLEN;

/// Begins to connect. The result is known when the stream is writable: `take_error`, then `peer_addr`.
///
/// # Errors
/// A socket, address, hop limit or key that the kernel refuses, named in words; nothing stays open. A link-local peer without an interface is
/// [`InvalidInput`](io::ErrorKind::InvalidInput).
pub fn dial(dial: &Dial) -> io::Result<mio::net::TcpStream> {
    let remote = scoped(dial.remote, dial.interface.as_deref())?;
    let v4 = remote.is_ipv4();
    let socket = open(remote)?;
    limit(&socket, v4, dial.ttl, dial.internal).map_err(|e| at("limit hops to", remote, e))?;
    if let Ttl::Security(hops) = dial.ttl {
        least_hops(&socket, v4, hops).map_err(|e| at("require a hop limit from", remote, e))?;
    }
    if let Some(secret) = &dial.password {
        let host = Prefix::host(remote.ip());
        set_key(&socket, &host, Some(secret)).map_err(|e| at("set the MD5 key for", remote, e))?;
    }
    if dial.local.is_some() || dial.local_port.is_some() {
        let any = if v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        let local = SocketAddr::new(dial.local.unwrap_or(any), dial.local_port.unwrap_or(0));
        if local.is_ipv4() != v4 {
            return Err(invalid(format!("dial {remote} from {}: the address families differ", local.ip())));
        }
        let local = if link_local(local.ip()) { scoped(local, dial.interface.as_deref())? } else { local };
        if dial.local_port.is_some() {
            socket.set_reuse_address(true).map_err(|e| at("reuse", local, e))?;
        }
        socket.bind(&local.into()).map_err(|e| at("bind to", local, e))?;
    }
    match socket.connect(&remote.into()) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(at("connect to", remote, e)),
        _ => Ok(mio::net::TcpStream::from_std(socket.into())),
    }
}

/// Listens on `address`, which need not be on an interface yet. An IPv6 socket takes IPv6 only.
///
/// # Errors
/// What the kernel refuses, with the address: in use, no permission for a port below 1024, no IPv6.
pub fn listen(address: SocketAddr) -> io::Result<mio::net::TcpListener> {
    let socket = open(address)?;
    socket.set_reuse_address(true).map_err(|e| at("reuse", address, e))?;
    if address.is_ipv4() {
        socket.set_freebind_v4(true).map_err(|e| at("allow binding early to", address, e))?;
    } else {
        socket.set_only_v6(true).map_err(|e| at("take IPv6 only on", address, e))?;
        socket.set_freebind_v6(true).map_err(|e| at("allow binding early to", address, e))?;
    }
    option(&socket, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1)
        .map_err(|e| at("keep the SYNs of", address, e))?;
    let name = |e: io::Error| {
        let advice = match e.raw_os_error() {
            Some(libc::EADDRINUSE) => {
                "; another BGP daemon may run here: stop it, or set bgp.listen_port: -1 if this host only dials"
            }
            Some(libc::EACCES) => {
                "; ports below 1024 need CAP_NET_BIND_SERVICE; or set bgp.listen_port: -1 if this host only dials"
            }
            _ => "",
        };
        io::Error::new(e.kind(), format!("cannot listen on {address}: {}{advice}", plain(&e)))
    };
    socket.bind(&address.into()).map_err(name)?;
    socket.listen(BACKLOG).map_err(name)?;
    Ok(mio::net::TcpListener::from_std(socket.into()))
}

/// Requires the key of every peer in `range` from now on, or with `None` of none of them. The longest range that contains a peer decides.
///
/// The key of a link-local peer counts on every interface, also one that does not exist yet: the kernel knows keys by address.
/// A range that is not of the listener's family is left alone. Within a range that has a key, a single peer cannot be freed from it.
///
/// # Errors
/// An empty key or one over [`MAX_KEY`] octets, a kernel without TCP MD5 ([`Unsupported`](io::ErrorKind::Unsupported)).
pub fn key(listener: &mio::net::TcpListener, range: &Prefix, secret: Option<&Secret>) -> io::Result<()> {
    if listener.local_addr()?.is_ipv4() != range.address().is_ipv4() {
        return Ok(());
    }
    match set_key(listener, range, secret) {
        Err(e) if secret.is_none() && e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done.map_err(|e| at("set the MD5 key for", range, e)),
    }
}

/// Fits a listener to the hop limits of all `peers` that may dial it: one that uses [`Ttl::Security`] takes a SYN-ACK only with hop limit 255,
/// and where they all do, a SYN from further away than the farthest of them is dropped before it costs anything.
///
/// Where none does, a SYN-ACK leaves with the system's default, so that a peer that alone uses GTSM fails at once instead of hanging.
///
/// # Errors
/// What the kernel refuses.
pub fn reach(listener: &mio::net::TcpListener, peers: &[Ttl]) -> io::Result<()> {
    let local = listener.local_addr()?;
    let v4 = local.is_ipv4();
    let hops: Vec<_> =
        peers.iter().filter_map(|ttl| if let Ttl::Security(h) = ttl { Some(*h) } else { None }).collect();
    let farthest = hops.iter().max().filter(|_| hops.len() == peers.len());
    set_hops(listener, v4, if hops.is_empty() { -1 } else { 255 })
        .map_err(|e| at("set the hop limit of", local, e))?;
    set_least(listener, v4, farthest.map_or(0, |h| c_int::from(least(*h))))
        .map_err(|e| at("require a hop limit on", local, e))
}

/// Makes an accepted connection keep to `ttl`, and refuses one that came from too far.
///
/// # Errors
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if GTSM is asked for and the SYN travelled too many hops: close the stream. Else what
/// the kernel refuses.
pub fn accepted(stream: &mio::net::TcpStream, ttl: Ttl, internal: bool) -> io::Result<()> {
    let remote = stream.peer_addr()?;
    let v4 = remote.is_ipv4();
    stream.set_nodelay(true).map_err(|e| at("send at once to", remote, e))?;
    limit(stream, v4, ttl, internal).map_err(|e| at("limit hops to", remote, e))?;
    if let Ttl::Security(hops) = ttl {
        least_hops(stream, v4, hops).map_err(|e| at("require a hop limit from", remote, e))?;
        let least = least(hops);
        match syn_hops(stream) {
            Some(came) if came < least => {
                let why = format!(
                    "{remote} is too far away: its SYN came with hop limit {came}, at least {least} is required"
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Gives a connection up once the other end has left octets unacknowledged for so long; with `None` the system decides.
///
/// # Errors
/// What the kernel refuses.
pub fn patience(stream: &mio::net::TcpStream, time: Option<Duration>) -> io::Result<()> {
    let ms = time.map_or(0, |t| libc::c_uint::try_from(t.as_millis()).unwrap_or(libc::c_uint::MAX));
    option(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &ms)
}

/// Connections that may wait to be accepted: a whole fleet that dials at once after a restart. The kernel has a limit of its own
/// (net.core.somaxconn).
const BACKLOG: c_int = 1024;

/// Internetwork control, where routing protocols belong (RFC 4594 §3.2): DSCP CS6.
const CS6: c_int = 0xc0;

/// A socket with what dialled and listening ones share.
fn open(to: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))
        .map_err(|e| at("open a socket for", to, e))?;
    socket.set_tcp_nodelay(true).map_err(|e| at("send at once to", to, e))?;
    let (level, name) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    // Where that is not allowed, packets go unmarked.
    let _ = option(&socket, level, name, &CS6);
    Ok(socket)
}

/// Sends with the hop limit that `ttl` asks for; -1 is the system's default.
fn limit(socket: &impl AsFd, v4: bool, ttl: Ttl, internal: bool) -> io::Result<()> {
    let hops = match ttl {
        Ttl::Direct if internal => -1,
        Ttl::Direct => 1,
        Ttl::Multihop(n) => c_int::from(n),
        Ttl::Security(_) => 255,
    };
    set_hops(socket, v4, hops)
}

fn set_hops(socket: &impl AsFd, v4: bool, hops: c_int) -> io::Result<()> {
    let (level, name) =
        if v4 { (libc::IPPROTO_IP, libc::IP_TTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) };
    option(socket, level, name, &hops)
}

fn least_hops(socket: &impl AsFd, v4: bool, hops: u8) -> io::Result<()> {
    set_least(socket, v4, c_int::from(least(hops)))
}

fn set_least(socket: &impl AsFd, v4: bool, least: c_int) -> io::Result<()> {
    let (level, name) =
        if v4 { (libc::IPPROTO_IP, libc::IP_MINTTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT) };
    option(socket, level, name, &least)
}

/// The least hop limit left of 255 after at most `hops` hops, of which the peer's own link is the first.
const fn least(hops: u8) -> u8 {
    match 0u8.wrapping_sub(hops) {
        0 => 255,
        least => least,
    }
}

/// The hop limit that the SYN of an accepted connection came with, if the kernel kept it. It is given once.
fn syn_hops(stream: &mio::net::TcpStream) -> Option<u8> {
    let mut syn = [0u8; 512];
    let mut len = socklen_t::try_from(syn.len()).ok()?;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; `syn` and `len` are ours, and `len` says how long `syn` is.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            syn.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match (done, len, syn[0] >> 4) {
        (0, 20.., 4) => Some(syn[8]),
        (0, 40.., 6) => Some(syn[7]),
        _ => None,
    }
}

/// `struct tcp_md5sig` of linux/tcp.h, which the libc crate does not have.
#[repr(C)]
struct Md5Sig {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_len: u8,
    key_len: u16,
    ifindex: c_int,
    key: [u8; MAX_KEY],
}

const _: () = assert!(size_of::<Md5Sig>() == 216);

/// `TCP_MD5SIG_FLAG_PREFIX` of linux/tcp.h.
const MD5_PREFIX: u8 = 1;

fn set_key(socket: &impl AsFd, range: &Prefix, secret: Option<&Secret>) -> io::Result<()> {
    let key = secret.map_or(&[][..], |s| s.reveal().as_bytes());
    if key.len() > MAX_KEY {
        return Err(invalid(format!("the key has {} octets, TCP MD5 takes at most {MAX_KEY}", key.len())));
    }
    if secret.is_some() && key.is_empty() {
        return Err(invalid("the key is empty".to_owned()));
    }
    // SAFETY: every field is an integer or an array of integers, for which all zeroes is a value.
    let mut sig: Md5Sig = unsafe { zeroed() };
    let address = socket2::SockAddr::from(SocketAddr::new(range.address(), 0));
    // SAFETY: both are at least `address.len()` octets long, as that is the length of a part of a `sockaddr_storage`; they do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(
            address.as_ptr().cast::<u8>(),
            (&raw mut sig.address).cast::<u8>(),
            address.len() as usize,
        );
    }
    sig.key[..key.len()].copy_from_slice(key);
    // At most MAX_KEY, 80.
    sig.key_len = key.len() as u16;
    let done = if range.is_host() {
        option(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG, &sig)
    } else {
        sig.flags = MD5_PREFIX;
        sig.prefix_len = range.len();
        option(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG_EXT, &sig)
    };
    match done {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no TCP MD5 (CONFIG_TCP_MD5SIG, and for ranges Linux 4.13); remove the password or change the kernel",
        )),
        done => done,
    }
}

/// Sets an option of a socket that the library has no call for.
pub(crate) fn option<T>(socket: &impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of_val(value) as socklen_t;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; `value` is `len` octets, which the kernel only reads.
    let done = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `address` with the scope that a link-local one needs.
fn scoped(mut address: SocketAddr, interface: Option<&str>) -> io::Result<SocketAddr> {
    if let SocketAddr::V6(v6) = &mut address
        && link_local(IpAddr::V6(*v6.ip()))
    {
        match interface {
            Some(name) => v6.set_scope_id(interface_index(name)?),
            None if v6.scope_id() == 0 => {
                return Err(invalid(format!("{} is link-local: name its interface", v6.ip())));
            }
            None => {}
        }
    }
    Ok(address)
}

const fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn at(operation: &str, object: impl std::fmt::Display, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {operation} {object}: {}", plain(&error)))
}

/// An I/O error in words without its number.
pub(crate) fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Raises the soft limit of open files to the hard one, and says what it is.
#[allow(unsafe_code, reason = "the standard library has no call for it")]
pub(crate) fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit that outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < limit.rlim_max {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: `raised` is a valid rlimit that outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
            return Ok(raised.rlim_cur);
        }
        // A sandbox may forbid it, and then the soft limit is the one that counts.
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gtsm_takes_one_hop_at_255_and_254_hops_at_2() {
        assert_eq!(least(1), 255);
        assert_eq!(least(2), 254);
        assert_eq!(least(254), 2);
    }
}
