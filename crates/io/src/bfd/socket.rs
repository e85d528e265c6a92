//! BFD's sockets (RFC 5881 §4, §5): in with the hop limit, out with 255 from a port of one's own; and how their thread waits and
//! runs ahead of others.
//!
//! What comes in is sorted by the kernel: a packet with the tag of our discriminators is from somebody who has heard us, and goes
//! to a socket with a queue of its own. However many others come, they fill only theirs.

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
/// Datagrams of known senders that are read before timers are looked at.
const TURN: usize = 256;
/// The same of strangers: what they can make this thread do is little.
const STRANGERS_TURN: usize = 64;
/// Room for what known senders send: a thousand packets.
const KNOWN: c_int = 1 << 20;
/// Room for what strangers send, sessions that begin among them.
const STRANGERS: c_int = 1 << 18;
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
    turn: usize,
}

impl Inbound {
    /// Opens two at an address, which need not be on this host yet: one for packets whose Your Discriminator begins with `tag`, and
    /// one for all others.
    ///
    /// # Errors
    /// What the kernel refuses, with the address.
    pub(super) fn open(at: SocketAddr, tag: u16) -> io::Result<[Self; 2]> {
        let opened = || {
            // Two that share a port share it with every other one of this user that would. So it must be free for one that does not.
            open(at)?.bind(&at.into())?;
            // The kernel counts them in the order in which they are bound.
            let strangers = shared(at, STRANGERS)?;
            sort(&strangers, tag)?;
            Ok((shared(at, KNOWN)?, strangers))
        };
        let (known, strangers) = opened().map_err(|e: io::Error| {
            let advice = match e.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    "; another BFD daemon may run here (FRR's bfdd, BIRD): stop it, or take bfd away"
                }
                _ => "",
            };
            io::Error::new(e.kind(), format!("cannot listen for BFD on {at}: {}{advice}", plain(&e)))
        })?;
        let one = |socket, turn| Self { socket, at, turn };
        Ok([one(known, TURN), one(strangers, STRANGERS_TURN)])
    }

    /// How many datagrams may be read from it before others have their turn.
    pub(super) const fn turn(&self) -> usize {
        self.turn
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

/// A socket at an address for which there is another one, with room for so many octets (as the kernel counts, some 800 for a packet).
fn shared(at: SocketAddr, room: c_int) -> io::Result<Socket> {
    let socket = open(at)?;
    if at.is_ipv4() {
        option(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, &1)?;
    } else {
        option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &1)?;
    }
    option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    // Beyond the system's limit where that is permitted, else up to it.
    if option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &room).is_err() {
        option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &room)?;
    }
    socket.bind(&at.into())?;
    Ok(socket)
}

/// Sends datagrams with the tag to the second socket of the first one's port, and all others, also such as are cut off, to the first.
fn sort(first: &Socket, tag: u16) -> io::Result<()> {
    const YOUR_DISCRIMINATOR: u32 = 8;
    let instruction = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, YOUR_DISCRIMINATOR, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, tag.into(), 1),
        instruction(libc::BPF_RET | libc::BPF_K, 1, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    option(first, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
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

    const TAG: u16 = 0xbfd1;

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
            let [known, strangers] = Inbound::open(free, TAG).unwrap();
            assert!(known.receive().is_none() && strangers.receive().is_none());
            let mut rng = Rng::new(u64::from(free.port()));
            let mut ports = std::collections::BTreeSet::new();
            for _ in 0..20 {
                let mut outbound = Outbound::open(Some(local), local, 0, free.port(), &mut rng).unwrap();
                assert!(outbound.send(b"packet").is_none(), "nothing is wrong");
                wait(&[strangers.fd()], Some(Duration::from_secs(5))).unwrap();
                let (from, hops, octets) = strangers.receive().unwrap();
                assert_eq!((from.ip(), hops, &octets[..]), (local, Some(255), &b"packet"[..]));
                assert!(from.port() >= FIRST_SOURCE);
                ports.insert(from.port());
            }
            assert!(ports.len() > 10, "each session has a port of its own: {ports:?}");
            let taken = Inbound::open(free, TAG).map(|_| ()).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            assert!(taken.to_string().contains("another BFD daemon"), "{taken}");
        }
    }

    #[test]
    fn however_much_strangers_send_those_who_have_heard_us_are_heard() {
        for local in [IpAddr::from([127, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let free = match std::net::UdpSocket::bind((local, 0)) {
                Ok(socket) => socket.local_addr().unwrap(),
                Err(e) => {
                    eprintln!("SKIP however_much_strangers_send over {local}: {e}");
                    continue;
                }
            };
            let [known, strangers] = Inbound::open(free, TAG).unwrap();
            let sender = std::net::UdpSocket::bind((local, 0)).unwrap();
            let packet = |yours: u32| {
                let mut octets = [0; 24];
                octets[8..12].copy_from_slice(&yours.to_be_bytes());
                octets
            };
            let ours = u32::from(TAG) << 16 | 7;
            for nth in 0..20_000_u32 {
                // For nobody, for a session that begins, and cut off before it says for whom.
                let octets = packet([1, 0, ours ^ 0x0100_0000][nth as usize % 3]);
                let _ = sender.send_to(&octets[..if nth % 5 == 0 { 9 } else { 24 }], free);
                if nth % 1000 == 0 {
                    sender.send_to(&packet(ours), free).unwrap();
                }
            }
            let heard =
                std::iter::from_fn(|| known.receive()).filter(|(.., o)| o[..] == packet(ours)).count();
            assert_eq!(heard, 20);
            assert!(known.receive().is_none());
            let others = std::iter::from_fn(|| strangers.receive()).count();
            assert!((64..20_000).contains(&others), "{others}: the flood did not fill its queue");
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
