//! TCP sockets of the speaker: dialling, listening, hop limits and MD5 keys. It moves no octets.
//!
//! Sources: RFC 2385 (MD5 signatures, by `TCP_MD5SIG` and, for ranges, `TCP_MD5SIG_EXT`), RFC 5082 (GTSM). Every error names
//! the operation and the address.

use mio::net::{TcpListener, TcpStream};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use standfast_core::node::Dial;
use standfast_core::plan::{Secret, Ttl};
use standfast_core::prefix::Prefix;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;

use crate::netlink::interface_index;

/// DSCP CS6, network control: what BGP speakers mark their packets with.
const TOS: u32 = 0xc0;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;
/// The longest key that the kernel takes.
pub const MAX_KEY: usize = 80;

/// Begins a connection that does not block; it is writable when it is there or has failed.
///
/// # Errors
/// What the kernel refused: a source address that is not here, an interface that does not exist, no route, a key without support.
pub fn dial(dial: &Dial) -> io::Result<TcpStream> {
    let socket = socket(dial.remote)?;
    let remote = scoped(dial.remote, dial.interface.as_deref())?;
    let name = |what: &str, e| named(e, &format!("{what} {remote}"));
    limit(&socket, dial.remote.ip(), dial.ttl, dial.internal)
        .map_err(|e| name("set the hop limit for", e))?;
    if let Some(password) = &dial.password {
        let host = Prefix::host(dial.remote.ip());
        set_key(&socket, &host, scope_of(remote), Some(password), false)
            .map_err(|e| name("set the MD5 key for", e))?;
    }
    if dial.local.is_some() || dial.local_port.is_some() {
        let unspecified = match dial.remote {
            SocketAddr::V4(_) => IpAddr::from([0; 4]),
            SocketAddr::V6(_) => IpAddr::from([0; 16]),
        };
        let local = SocketAddr::new(dial.local.unwrap_or(unspecified), dial.local_port.unwrap_or(0));
        let local = scoped(local, dial.interface.as_deref())?;
        if dial.local_port.is_some() {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&local.into()).map_err(|e| named(e, &format!("use the source address {local}")))?;
    }
    match socket.connect(&SockAddr::from(remote)) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(name("connect to", e)),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Opens a listening socket that does not block. An address that is not here yet is taken all the same.
///
/// # Errors
/// The address is in use, or the port needs a capability.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let name = |e: io::Error| {
        let advice = match e.raw_os_error() {
            Some(libc::EADDRINUSE) => "; another BGP daemon may run here: stop it, or set bgp.listen_port",
            Some(libc::EACCES) => "; ports below 1024 need CAP_NET_BIND_SERVICE",
            _ => "",
        };
        io::Error::new(e.kind(), format!("cannot listen on {address}: {}{advice}", plain(&e)))
    };
    let socket = socket(address).map_err(name)?;
    socket.set_reuse_address(true).map_err(name)?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true).map_err(name)?,
        SocketAddr::V6(_) => {
            socket.set_only_v6(true).map_err(name)?;
            socket.set_freebind_v6(true).map_err(name)?;
        }
    }
    socket.bind(&address.into()).map_err(name)?;
    socket.listen(BACKLOG).map_err(name)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Sets the MD5 key that peers of `range` must sign with on a listening socket; `None` takes it away.
///
/// # Errors
/// The key is longer than [`MAX_KEY`], the interface does not exist, or the kernel has no TCP MD5.
pub fn key(
    listener: &TcpListener,
    range: &Prefix,
    interface: Option<&str>,
    password: Option<&Secret>,
) -> io::Result<()> {
    let scope = scope_of(scoped(SocketAddr::new(range.address(), 0), interface)?);
    set_key(listener, range, scope, password, true)
        .map_err(|e| named(e, &format!("set the MD5 key for {range}")))
}

/// Applies the hop limit to an accepted connection. Its first segments were taken before; with GTSM, none that follow are
/// from further away than allowed.
///
/// # Errors
/// What the kernel refused.
pub fn accepted(stream: &TcpStream, ttl: Ttl, internal: bool) -> io::Result<()> {
    let remote = stream.peer_addr()?.ip();
    let socket = SockRef::from(stream);
    stream.set_nodelay(true)?;
    mark(&socket, remote);
    limit(&socket, remote, ttl, internal)
}

fn socket(remote: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    mark(&socket, remote.ip());
    Ok(socket)
}

/// Marks packets as network control; where that is not allowed they go unmarked.
fn mark(socket: &Socket, remote: IpAddr) {
    let _ = match remote {
        IpAddr::V4(_) => socket.set_tos_v4(TOS),
        IpAddr::V6(_) => socket.set_tclass_v6(TOS),
    };
}

fn limit(socket: &Socket, remote: IpAddr, ttl: Ttl, internal: bool) -> io::Result<()> {
    let (send, least) = match ttl {
        Ttl::Direct if internal => return Ok(()),
        Ttl::Direct => (1, None),
        Ttl::Multihop(n) => (u32::from(n), None),
        Ttl::Security(hops) => (255, Some(256 - u32::from(hops))),
    };
    match remote {
        IpAddr::V4(_) => {
            socket.set_ttl_v4(send)?;
            least.map_or(Ok(()), |n| option(socket, libc::IPPROTO_IP, libc::IP_MINTTL, &(n as libc::c_int)))
        }
        IpAddr::V6(_) => {
            socket.set_unicast_hops_v6(send)?;
            let name = libc::IPV6_MINHOPCOUNT;
            least.map_or(Ok(()), |n| option(socket, libc::IPPROTO_IPV6, name, &(n as libc::c_int)))
        }
    }
}

/// `struct tcp_md5sig` of linux/tcp.h.
#[repr(C)]
struct Md5Sig {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_len: u8,
    key_len: u16,
    interface: libc::c_int,
    key: [u8; MAX_KEY],
}

/// `TCP_MD5SIG_FLAG_PREFIX`: `prefix_len` counts.
const FLAG_PREFIX: u8 = 1;

fn set_key(
    socket: &impl AsRawFd,
    range: &Prefix,
    scope: u32,
    password: Option<&Secret>,
    listening: bool,
) -> io::Result<()> {
    let secret = password.map_or(&b""[..], |p| p.reveal().as_bytes());
    if secret.len() > MAX_KEY {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the key is longer than {MAX_KEY} octets"),
        ));
    }
    let address = match range.address() {
        IpAddr::V4(a) => SocketAddr::from((a, 0)),
        IpAddr::V6(a) => SocketAddr::V6(SocketAddrV6::new(a, 0, 0, scope)),
    };
    let address = SockAddr::from(address);
    let mut key = [0; MAX_KEY];
    key[..secret.len()].copy_from_slice(secret);
    let md5 = Md5Sig {
        // SAFETY: SockAddr holds a whole sockaddr_storage, of which the first `len` octets are set and the rest is zero.
        address: unsafe { std::ptr::read(address.as_ptr().cast::<libc::sockaddr_storage>()) },
        flags: if listening { FLAG_PREFIX } else { 0 },
        prefix_len: range.len(),
        key_len: secret.len() as u16,
        interface: 0,
        key,
    };
    let name = if listening { libc::TCP_MD5SIG_EXT } else { libc::TCP_MD5SIG };
    option(socket, libc::IPPROTO_TCP, name, &md5).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOPROTOOPT) => io::Error::new(e.kind(), "this kernel has no TCP MD5 (CONFIG_TCP_MD5SIG)"),
        _ => e,
    })
}

fn option<T>(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is a live, initialised T of exactly the size given, and the descriptor is open for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The address with the interface's index as its scope, where it is link-local.
fn scoped(address: SocketAddr, interface: Option<&str>) -> io::Result<SocketAddr> {
    match (address, interface) {
        (SocketAddr::V6(a), Some(interface)) if a.ip().is_unicast_link_local() => {
            let index = interface_index(interface)?;
            Ok(SocketAddrV6::new(*a.ip(), a.port(), 0, index).into())
        }
        _ => Ok(address),
    }
}

const fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) => a.scope_id(),
    }
}

fn named(e: io::Error, what: &str) -> io::Error {
    io::Error::new(e.kind(), format!("cannot {what}: {}", plain(&e)))
}

/// An I/O error in words without its number.
pub(crate) fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
