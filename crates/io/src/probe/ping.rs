//! The `ping` check: ICMP echo requests, how many of them come back, and how fast.
//!
//! An ICMP datagram socket needs no right where `net.ipv4.ping_group_range` allows it; otherwise, or if asked for, a raw
//! socket is used, which needs `CAP_NET_RAW`. Where neither may be opened there is no result, for nothing was learnt about
//! the target. A run ends as soon as every packet is answered, and always before the check's own timeout, so that lost
//! packets are counted and not mistaken for a run that hung.
//!
//! An answer counts if it comes from the target and carries the identifier and the random token of this very run: neither
//! another check, nor another program, nor a late answer to an earlier run can stand in for it. A raw socket hears no other
//! packet at all, whatever goes on around it. Nothing of a run is left after it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use standfast_core::plan::{PingProbe, Via};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::icmp;
use super::run::{Doing, Failure, failed, random};
use crate::dial::leave;

/// What every packet carries after the ICMP header: the token of the run, padded to the size that `ping` uses.
const PAYLOAD: usize = 56;

/// Sends the packets and counts what comes back.
pub(super) async fn run(probe: &PingProbe, doing: &Doing<'_>) -> Result<String, Failure> {
    let target = probe.target;
    let count = probe.count.clamp(1, 60);
    let token = random();
    let (socket, kind) = open(probe, doing.via, token)?;
    doing.note(|saw| {
        saw.remote = Some(SocketAddr::new(target, 0));
        saw.local = socket.local_addr().ok().map(|a| SocketAddr::new(a.ip(), 0));
    });
    let echo = Echo { target, token, id: id(&socket, kind, token) };
    let end = doing.before_the_end();
    // When each packet left, and how long its answer took.
    let mut sent: Vec<Instant> = Vec::new();
    let mut trips: Vec<Option<Duration>> = vec![None; count as usize];
    let mut refusal = None;
    let mut next = Instant::now();
    loop {
        let received = trips.iter().flatten().count();
        doing.set(format!("waiting for {target}: {received} of {count} packets are back"));
        if received == trips.len() {
            break;
        }
        let all_sent = sent.len() == trips.len();
        let wake = match sent.last() {
            Some(last) if all_sent => (*last + probe.timeout).min(end),
            _ => next.min(end),
        };
        tokio::select! {
            // What has come counts before the time is up.
            biased;
            reply = echo.receive(&socket) => match reply {
                Ok(sequence) => {
                    let at = usize::from(sequence);
                    if let (Some(left), Some(trip)) = (sent.get(at), trips.get_mut(at))
                        && left.elapsed() <= probe.timeout
                    {
                        trip.get_or_insert(left.elapsed());
                    }
                }
                // An ICMP error is told as one of the socket; a later packet may still come back.
                Err(e) => refusal = Some(icmp::failed(&socket, "", target, &e)),
            },
            () = sleep_until(wake) => {
                if let Some(stalled) = doing.stalled(wake) {
                    return Err(stalled);
                }
                if all_sent || Instant::now() >= end {
                    break;
                }
                let packet = echo.request(u16::try_from(sent.len()).unwrap_or(u16::MAX));
                sent.push(Instant::now());
                next += probe.interval;
                if let Err(e) = socket.send(&packet).await {
                    refusal = Some(icmp::failed(&socket, "", target, &e));
                }
            }
        }
    }
    doing.note(|saw| {
        saw.sent = u32::try_from(sent.len()).ok();
        saw.rtts = trips.iter().flatten().copied().collect();
    });
    match (judge(probe, &trips, refusal.as_ref()), refusal) {
        (Ok(text), _) => Ok(format!("{text} ({})", kind.name())),
        // This host could not send: nothing was learnt.
        (Err(_), Some(Failure::Local(why))) => Err(Failure::Local(format!("ping {target}{why}"))),
        (Err(failure), _) => Err(failure),
    }
}

fn judge(
    probe: &PingProbe,
    trips: &[Option<Duration>],
    refusal: Option<&Failure>,
) -> Result<String, Failure> {
    let (target, count) = (probe.target, trips.len());
    let back: Vec<Duration> = trips.iter().flatten().copied().collect();
    let lost = count - back.len();
    if lost * 1000 > count * usize::from(probe.max_loss_permille) {
        let mut text = format!(
            "{target}: {lost} of {count} packets lost, {} may be",
            count * usize::from(probe.max_loss_permille) / 1000
        );
        if let Some(Failure::Bad(why) | Failure::Local(why)) = refusal {
            text.push_str(why);
        }
        return Err(Failure::Bad(text));
    }
    let mean = back.iter().sum::<Duration>() / u32::try_from(back.len()).unwrap_or(1).max(1);
    if let Some(limit) = probe.max_rtt
        && mean > limit
    {
        return Err(Failure::Bad(format!(
            "{target}: {} on average over {} packets, at most {} may be",
            millis(mean),
            back.len(),
            millis(limit)
        )));
    }
    Ok(format!("{target}: {} of {count} packets back, {} on average", back.len(), millis(mean)))
}

fn millis(d: Duration) -> String {
    let micros = d.as_micros();
    format!("{}.{:03} ms", micros / 1000, micros % 1000)
}

/// How echo requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The kernel puts in an identifier of the socket's own and hands out only answers with it.
    Datagram,
    /// Every ICMP packet for this host is there to be heard.
    Raw,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Datagram => "ICMP datagram socket",
            Self::Raw => "raw socket",
        }
    }
}

/// A socket that hears the answers of the target alone.
fn open(probe: &PingProbe, via: &Via, token: u64) -> Result<(UdpSocket, Kind), Failure> {
    let target = probe.target;
    let (domain, protocol) = match target {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let made = |kind, ty| Socket::new(domain, ty, Some(protocol)).map(|socket| (socket, kind));
    let raw = || made(Kind::Raw, Type::RAW);
    let refused =
        |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EPROTONOSUPPORT));
    let opened = if probe.privileged {
        raw()
    } else {
        match made(Kind::Datagram, Type::DGRAM) {
            Err(e) if refused(&e) => raw(),
            opened => opened,
        }
    };
    let (socket, kind) = opened.map_err(|e| match refused(&e) {
        true if probe.privileged => Failure::Local(
            "this process may not ping: `privileged` needs CAP_NET_RAW (of systemd: AmbientCapabilities=CAP_NET_RAW)"
                .into(),
        ),
        true => Failure::Local(
            "this process may not ping: let its group do so by `sysctl -w net.ipv4.ping_group_range=\"0 2147483647\"`, \
             or give it CAP_NET_RAW (of systemd: AmbientCapabilities=CAP_NET_RAW)"
                .into(),
        ),
        false => failed("ICMP socket", &e),
    })?;
    leave(&socket, via, probe.source.or(via.source), || format!("ping {target}"))?;
    if kind == Kind::Raw {
        socket.attach_filter(&only(target, token)).map_err(|e| failed("ICMP socket", &e))?;
    }
    icmp::listen(&socket, target);
    socket.connect(&SocketAddr::new(target, 0).into()).map_err(|e| failed(&format!("ping {target}"), &e))?;
    socket.set_nonblocking(true).map_err(|e| failed("ICMP socket", &e))?;
    // The calls for datagrams are the same; only the packets differ.
    let socket = UdpSocket::from_std(socket.into()).map_err(|e| failed("ICMP socket", &e))?;
    Ok((socket, kind))
}

/// The identifier that answers carry.
fn id(socket: &UdpSocket, kind: Kind, token: u64) -> Option<u16> {
    match kind {
        // The kernel's choice, which it shows as the port.
        Kind::Datagram => socket.local_addr().ok().map(|a| a.port()),
        Kind::Raw => Some((token >> 48) as u16),
    }
}

/// A filter of the kernel (BPF) that lets answers with `token` pass and nothing else, so that a thousand raw sockets do not
/// each wake for every packet.
fn only(target: IpAddr, token: u64) -> [SockFilter; 9] {
    let op = |code: u32, jump_if_not, k| SockFilter::new(code as u16, 0, jump_if_not, k);
    let load = |size, offset| op(libc::BPF_LD | size | libc::BPF_IND, 0, offset);
    let must_be = |k, to_the_end| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_the_end, k);
    // An IPv4 packet begins with its IP header, an IPv6 one with that of ICMP.
    let (kind, start) = match target {
        IpAddr::V4(_) => (0, op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0)),
        IpAddr::V6(_) => (129, op(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, 0, 0)),
    };
    [
        start,
        load(libc::BPF_B, 0),
        must_be(kind, 5),
        load(libc::BPF_W, 8),
        must_be((token >> 32) as u32, 3),
        load(libc::BPF_W, 12),
        must_be(token as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0),
    ]
}

/// What tells the packets of one run from all others.
#[derive(Debug)]
struct Echo {
    target: IpAddr,
    token: u64,
    /// The identifier; `None` if the kernel would not tell it.
    id: Option<u16>,
}

impl Echo {
    /// The sequence number of the next answer to this run.
    async fn receive(&self, socket: &UdpSocket) -> io::Result<u16> {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await?;
            if let Some(sequence) = self.reply(from.ip(), &buffer[..length]) {
                return Ok(sequence);
            }
        }
    }

    /// An echo request. A datagram socket puts in its own identifier and checksum, and the kernel any checksum of ICMPv6.
    fn request(&self, sequence: u16) -> Vec<u8> {
        let kind = if self.target.is_ipv4() { 8 } else { 128 };
        let mut packet = vec![kind, 0, 0, 0];
        packet.extend_from_slice(&((self.token >> 48) as u16).to_be_bytes());
        packet.extend_from_slice(&sequence.to_be_bytes());
        packet.extend_from_slice(&self.token.to_be_bytes());
        packet.resize(8 + PAYLOAD, 0);
        if self.target.is_ipv4() {
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        packet
    }

    /// The sequence number of an answer to this run; `None` if `octets` are anything else.
    fn reply(&self, from: IpAddr, mut octets: &[u8]) -> Option<u16> {
        let kind = if self.target.is_ipv4() { 0 } else { 129 };
        // Before ICMPv4 a raw socket shows the IP header, and a datagram socket does not; an answer begins with 0.
        if self.target.is_ipv4() && octets.first()? >> 4 == 4 {
            octets = octets.get(usize::from(octets.first()? & 15) * 4..)?;
        }
        let (head, rest) = octets.split_first_chunk::<8>()?;
        let (token, _) = rest.split_first_chunk::<8>()?;
        let ours = head[0] == kind
            && head[1] == 0
            && from == self.target
            && self.id.is_none_or(|id| id.to_be_bytes() == head[4..6])
            && *token == self.token.to_be_bytes();
        ours.then(|| u16::from_be_bytes([head[6], head[7]]))
    }
}

/// RFC 1071, over an even number of octets.
fn checksum(octets: &[u8]) -> u16 {
    let mut sum: u32 = octets.as_chunks().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Reads `octets` as an answer, whatever they are, and says whether they are one to a run with the token `0x5354_414e_4446_4153`.
pub(super) fn fuzz(octets: &[u8]) -> bool {
    let token = 0x5354_414e_4446_4153;
    ["127.0.0.1", "::1"].iter().filter_map(|a| a.parse().ok()).any(|target| {
        let echo = Echo { target, token, id: Some((token >> 48) as u16) };
        echo.reply(target, octets).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const TOKEN: u64 = 0x0123_4567_89ab_cdef;

    fn echo() -> Echo {
        Echo { target: V4, token: TOKEN, id: Some(0x0123) }
    }

    #[test]
    fn a_request_has_a_checksum_that_adds_up() {
        let packet = echo().request(7);
        assert_eq!(packet.len(), 64);
        assert_eq!(checksum(&packet), 0);
        // RFC 1071 §3.
        assert_eq!(!checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn only_the_targets_answer_with_identifier_and_token_counts() {
        let mut packet = echo().request(7);
        assert_eq!(echo().reply(V4, &packet), None, "a request is no answer");
        packet[0] = 0;
        assert_eq!(echo().reply(V4, &packet), Some(7));
        assert_eq!(Echo { token: TOKEN ^ 1, ..echo() }.reply(V4, &packet), None);
        assert_eq!(Echo { id: Some(0x0124), ..echo() }.reply(V4, &packet), None);
        assert_eq!(echo().reply("127.0.0.2".parse().unwrap(), &packet), None);
        let mut with_header = vec![0x45; 20];
        with_header.extend_from_slice(&packet);
        assert_eq!(echo().reply(V4, &with_header), Some(7));
        for length in 0..with_header.len() - PAYLOAD + 8 {
            assert_eq!(echo().reply(V4, &with_header[..length]), None);
        }
        assert_eq!(echo().reply(V4, &[0x4f; 30]), None);
    }

    #[test]
    fn losses_up_to_the_ratio_are_good_and_slowness_is_not() {
        let trip = Some(Duration::from_micros(1500));
        let probe = PingProbe { max_loss_permille: 500, ..PingProbe::new(V4, Duration::from_secs(1)) };
        assert_eq!(
            judge(&probe, &[trip, None], None).unwrap(),
            "127.0.0.1: 1 of 2 packets back, 1.500 ms on average"
        );
        let strict = PingProbe { max_loss_permille: 499, ..probe.clone() };
        let why = Failure::Bad(": ICMP host unreachable".into());
        let Err(Failure::Bad(text)) = judge(&strict, &[trip, None], Some(&why)) else { panic!("not bad") };
        assert_eq!(text, "127.0.0.1: 1 of 2 packets lost, 0 may be: ICMP host unreachable");
        assert!(judge(&PingProbe { max_loss_permille: 999, ..probe.clone() }, &[None, None], None).is_err());
        let fast = PingProbe { max_rtt: Some(Duration::from_millis(1)), ..probe };
        let Err(Failure::Bad(text)) = judge(&fast, &[trip, trip], None) else { panic!("not bad") };
        assert_eq!(text, "127.0.0.1: 1.500 ms on average over 2 packets, at most 1.000 ms may be");
    }
}
