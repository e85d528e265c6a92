//! BFD's sockets (RFC 5881 §4, §5): in with the hop limit, out with 255 from a port of one's own; and how their thread waits and
//! runs ahead of others.

#![expect(
    unsafe_code,
    reason = "hop limits of datagrams, waiting for less than a millisecond and the scheduler are reached by system calls alone"
)]

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use libc::c_int;
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use standfast_core::bfd::MULTIHOP_PORT;
use standfast_core::machine::Rng;

use crate::tcp::{option, plain};

/// Ports that packets may come from (RFC 5881 §4).
const FIRST_SOURCE: u16 = 49152;
/// How many ports are tried.
const TRIES: u32 = 64;
/// Octets of a datagram that are read: what a packet can say that it has.
const LONGEST: usize = 255;
/// Internetwork control: DSCP CS6.
const CS6: c_int = 0xc0;
/// Above ordinary threads, below what the kernel itself runs so.
const PRIORITY: c_int = 20;

/// A socket that packets come in on.
pub(super) struct Inbound {
    socket: Socket,
    at: SocketAddr,
}

impl Inbound {
    /// Opens one at an address, which need not be on this host yet.
    ///
    /// # Errors
    /// What the kernel refuses, with the address.
    pub(super) fn open(at: SocketAddr) -> io::Result<Self> {
        let opened = || {
            let socket = open(at)?;
            if at.is_ipv4() {
                option(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, &1)?;
            } else {
                option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &1)?;
            }
            socket.bind(&at.into())?;
            Ok(socket)
        };
        let socket = opened().map_err(|e: io::Error| {
            let advice = match e.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    "; another BFD daemon may run here (FRR's bfdd, BIRD): stop it, or take bfd away"
                }
                _ => "",
            };
            io::Error::new(e.kind(), format!("cannot listen for BFD on {at}: {}{advice}", plain(&e)))
        })?;
        Ok(Self { socket, at })
    }

    /// Whether it is for sessions over several hops.
    pub(super) const fn multihop(&self) -> bool {
        self.at.port() == MULTIHOP_PORT
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The next datagram, who sent it, and its hop limit; `None` if none is there. One that is too long is cut off.
    pub(super) fn receive(&self) -> Option<(SocketAddr, Option<u8>, Vec<u8>)> {
        let mut octets = vec![0; LONGEST];
        let mut control = Control([0; 64]);
        let mut part = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        // SAFETY: a structure of integers and pointers, for which all zeroes is a value.
        let mut message = unsafe { zeroed::<libc::msghdr>() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let receive = |name: *mut SockAddrStorage, length: *mut libc::socklen_t| {
            message.msg_name = name.cast();
            // SAFETY: `length` says how much room there is at `name`; both are the library's, for this call.
            message.msg_namelen = unsafe { *length };
            // SAFETY: every pointer in `message` is to memory that outlives the call, with its length beside it.
            let read = unsafe { libc::recvmsg(self.fd(), &raw mut message, libc::MSG_DONTWAIT) };
            // None there, or an error of an earlier packet.
            let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
            // SAFETY: as above.
            unsafe { *length = message.msg_namelen };
            Ok(read)
        };
        // SAFETY: the kernel wrote an address of the length that it said.
        let (read, from) = unsafe { SockAddr::try_init(receive) }.ok()?;
        octets.truncate(read);
        Some((from.as_socket()?, hops(&message), octets))
    }
}

/// Room for what comes with a datagram, aligned for its header.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// The hop limit that came with a datagram.
fn hops(message: &libc::msghdr) -> Option<u8> {
    // SAFETY: `message` is as recvmsg left it, and what it points to is still there.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it points to a whole header inside the control buffer.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if matches!(
            (level, kind),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        ) {
            // SAFETY: these two carry an int, which may stand at any address.
            let hops: c_int = unsafe { libc::CMSG_DATA(header).cast::<c_int>().read_unaligned() };
            return u8::try_from(hops).ok();
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

/// A socket that one session's packets go out from.
pub(super) struct Outbound {
    socket: Socket,
    local: Option<IpAddr>,
    to: SocketAddr,
    scope: u32,
    /// The kind of error that the last packet met.
    failed: Option<io::ErrorKind>,
}

impl Outbound {
    /// Opens one from an address, or one of the kernel's choice, to a port of `remote`, on an interface if `scope` is its number.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn open(
        local: Option<IpAddr>,
        remote: IpAddr,
        scope: u32,
        port: u16,
        rng: &mut Rng,
    ) -> io::Result<Self> {
        let any = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = local.unwrap_or(any);
        let to = scoped(remote, port, scope);
        let name = |e: io::Error| {
            io::Error::new(e.kind(), format!("cannot send BFD packets from {from}: {}", plain(&e)))
        };
        let socket = open(to).map_err(name)?;
        if to.is_ipv4() {
            socket.set_ttl_v4(255).map_err(name)?;
        } else {
            socket.set_unicast_hops_v6(255).map_err(name)?;
        }
        let mut tries = 0;
        loop {
            // The range is a quarter of all ports, so the number fits.
            let source = FIRST_SOURCE + rng.below(u64::from(u16::MAX - FIRST_SOURCE) + 1) as u16;
            match socket.bind(&scoped(from, source, scope).into()) {
                Ok(()) => return Ok(Self { socket, local, to, scope, failed: None }),
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && tries < TRIES => tries += 1,
                Err(e) => return Err(name(e)),
            }
        }
    }

    pub(super) const fn local(&self) -> Option<IpAddr> {
        self.local
    }

    pub(super) const fn scope(&self) -> u32 {
        self.scope
    }

    /// Sends a packet. If it meets another kind of error than the last one did, or none after one: that.
    pub(super) fn send(&mut self, octets: &[u8]) -> Option<Option<io::Error>> {
        let error = self.socket.send_to(octets, &self.to.into()).err();
        let kind = error.as_ref().map(io::Error::kind);
        // A full queue passes, as lost packets do.
        if kind == self.failed || kind == Some(io::ErrorKind::WouldBlock) {
            return None;
        }
        self.failed = kind;
        Some(error)
    }
}

fn scoped(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, scope).into(),
        _ => SocketAddr::new(ip, port),
    }
}

/// What both kinds of sockets share.
fn open(at: SocketAddr) -> io::Result<Socket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(at), kind, Some(Protocol::UDP))?;
    let (level, name) = if at.is_ipv4() {
        socket.set_freebind_v4(true)?;
        (libc::IPPROTO_IP, libc::IP_TOS)
    } else {
        socket.set_only_v6(true)?;
        socket.set_freebind_v6(true)?;
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
    };
    // Where that is not allowed, packets go unmarked.
    let _ = option(&socket, level, name, &CS6);
    Ok(socket)
}

/// Waits until one of them can be read, or for so long.
///
/// # Errors
/// There is no memory.
pub(super) fn wait(descriptors: &[RawFd], timeout: Option<Duration>) -> io::Result<()> {
    let one = |&fd: &RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut list: Vec<libc::pollfd> = descriptors.iter().map(one).collect();
    let time = timeout.map(|d| libc::timespec {
        tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(d.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `list` is as long as it is said to be; `time` is null or points to an initialised structure that outlives the call.
    let done = unsafe { libc::ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, time, std::ptr::null()) };
    match io::Error::last_os_error() {
        e if done < 0 && e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}

/// Makes this thread run whenever it has something to do, whatever ordinary threads are at.
///
/// # Errors
/// It is not permitted: CAP_SYS_NICE, or a limit on real-time priorities of [`PRIORITY`] at least, is needed.
pub(super) fn run_ahead() -> io::Result<()> {
    // SAFETY: a structure of integers, for which all zeroes is a value.
    let mut parameters = unsafe { zeroed::<libc::sched_param>() };
    parameters.sched_priority = PRIORITY;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: it changes the calling thread alone and only reads `parameters`. By number, as musl's function does nothing.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const parameters) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc5881_packets_leave_with_255_from_a_high_port_and_arrive_with_their_hop_limit() {
        for local in [IpAddr::from([127, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let free = match std::net::UdpSocket::bind((local, 0)) {
                Ok(socket) => socket.local_addr().unwrap(),
                Err(e) => {
                    eprintln!("SKIP rfc5881_packets_leave_with_255 over {local}: {e}");
                    continue;
                }
            };
            let inbound = Inbound::open(free).unwrap();
            assert!(inbound.receive().is_none());
            let mut rng = Rng::new(u64::from(free.port()));
            let mut ports = std::collections::BTreeSet::new();
            for _ in 0..20 {
                let mut outbound = Outbound::open(Some(local), local, 0, free.port(), &mut rng).unwrap();
                assert!(outbound.send(b"packet").is_none(), "nothing is wrong");
                wait(&[inbound.fd()], Some(Duration::from_secs(5))).unwrap();
                let (from, hops, octets) = inbound.receive().unwrap();
                assert_eq!((from.ip(), hops, &octets[..]), (local, Some(255), &b"packet"[..]));
                assert!(from.port() >= FIRST_SOURCE);
                ports.insert(from.port());
            }
            assert!(ports.len() > 10, "each session has a port of its own: {ports:?}");
            let taken = Inbound::open(free).map(|_| ()).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            assert!(taken.to_string().contains("another BFD daemon"), "{taken}");
        }
    }

    #[test]
    fn a_wait_ends_in_time() {
        let begun = std::time::Instant::now();
        wait(&[], Some(Duration::from_micros(300))).unwrap();
        let took = begun.elapsed();
        assert!(took >= Duration::from_micros(300) && took < Duration::from_secs(2), "{took:?}");
    }
}
