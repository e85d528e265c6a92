//! The `ping` check: ICMP echo requests, and how many of them come back.
//!
//! An ICMP datagram socket needs no right where `net.ipv4.ping_group_range` allows it; otherwise, or if asked for, a raw
//! socket is used, which needs `CAP_NET_RAW`. A run ends as soon as every packet is answered, and always before the
//! check's own timeout, so that lost packets are counted and not mistaken for a run that hung.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use standfast_core::plan::PingProbe;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::run::{Doing, Failure, failed, random};

/// What every packet carries after the ICMP header: a token of the run, padded to the size that `ping` uses.
const PAYLOAD: usize = 56;

/// Sends the packets and counts what comes back.
pub(super) async fn run(probe: &PingProbe, doing: &Doing<'_>) -> Result<String, Failure> {
    let PingProbe { target, source, privileged, count, interval, timeout, max_loss_permille } = probe;
    let (target, count) = (*target, (*count).clamp(1, 60));
    let socket = open(target, *source, *privileged)?;
    let token = random();
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
            Some(last) if all_sent => (*last + *timeout).min(end),
            _ => next.min(end),
        };
        tokio::select! {
            reply = receive(&socket, target, token) => match reply {
                Ok(sequence) => {
                    let at = usize::from(sequence);
                    if let (Some(left), Some(trip)) = (sent.get(at), trips.get_mut(at))
                        && left.elapsed() <= *timeout
                    {
                        trip.get_or_insert(left.elapsed());
                    }
                }
                // An ICMP unreachable is told as an error of the socket; a later packet may still come back.
                Err(e) => refusal = Some(e),
            },
            () = sleep_until(wake) => {
                if all_sent || Instant::now() >= end {
                    break;
                }
                let packet = request(target, token, u16::try_from(sent.len()).unwrap_or(u16::MAX));
                sent.push(Instant::now());
                next += *interval;
                if let Err(e) = socket.send(&packet).await {
                    refusal = Some(e);
                }
            }
        }
    }
    judge(target, &trips, *max_loss_permille, refusal.as_ref())
}

fn judge(
    target: IpAddr,
    trips: &[Option<Duration>],
    max_loss_permille: u16,
    refusal: Option<&io::Error>,
) -> Result<String, Failure> {
    let count = trips.len();
    let back: Vec<Duration> = trips.iter().flatten().copied().collect();
    let lost = count - back.len();
    if lost * 1000 > count * usize::from(max_loss_permille) {
        let text = format!(
            "{target}: {lost} of {count} packets lost, {} may be",
            count * usize::from(max_loss_permille) / 1000
        );
        return Err(match refusal {
            Some(e) => failed(&text, e),
            None => Failure::Bad(text),
        });
    }
    let mean = back.iter().sum::<Duration>().as_micros() / u128::try_from(back.len().max(1)).unwrap_or(1);
    Ok(format!(
        "{target}: {} of {count} packets back, {}.{:03} ms on average",
        back.len(),
        mean / 1000,
        mean % 1000
    ))
}

/// A socket that hears the answers of `target` alone.
fn open(target: IpAddr, source: Option<IpAddr>, privileged: bool) -> Result<UdpSocket, Failure> {
    let (domain, protocol) = match target {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let raw = || Socket::new(domain, Type::RAW, Some(protocol));
    let denied = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    let opened = match Socket::new(domain, Type::DGRAM, Some(protocol)) {
        _ if privileged => raw(),
        Err(e) if denied(&e) => raw(),
        opened => opened,
    };
    let socket = opened.map_err(|e| {
        let advice = if denied(&e) { " (set net.ipv4.ping_group_range or give CAP_NET_RAW)" } else { "" };
        failed(&format!("ICMP socket{advice}"), &e)
    })?;
    if let Some(source) = source {
        socket
            .bind(&SocketAddr::new(source, 0).into())
            .map_err(|e| failed(&format!("source {source}"), &e))?;
    }
    socket.connect(&SocketAddr::new(target, 0).into()).map_err(|e| failed(&format!("ping {target}"), &e))?;
    socket.set_nonblocking(true).map_err(|e| failed("ICMP socket", &e))?;
    // The calls for datagrams are the same; only the packets differ.
    UdpSocket::from_std(socket.into()).map_err(|e| failed("ICMP socket", &e))
}

/// The sequence number of the next answer to this run.
async fn receive(socket: &UdpSocket, target: IpAddr, token: u64) -> io::Result<u16> {
    let mut buffer = [0; 2048];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(sequence) = reply(target, &buffer[..length], token) {
            return Ok(sequence);
        }
    }
}

/// An echo request. A datagram socket puts in its own identifier and checksum, and the kernel any checksum of ICMPv6.
fn request(target: IpAddr, token: u64, sequence: u16) -> Vec<u8> {
    let kind = if target.is_ipv4() { 8 } else { 128 };
    let mut packet = vec![kind, 0, 0, 0];
    packet.extend_from_slice(&token.to_be_bytes()[..2]);
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&token.to_be_bytes());
    packet.resize(8 + PAYLOAD, 0);
    if target.is_ipv4() {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// The sequence number of an answer to a request with this token; `None` if `octets` are anything else.
fn reply(target: IpAddr, mut octets: &[u8], token: u64) -> Option<u16> {
    let kind = if target.is_ipv4() { 0 } else { 129 };
    // Before ICMPv4 a raw socket shows the IP header, and a datagram socket does not; an answer begins with 0.
    if target.is_ipv4() && octets.first()? >> 4 == 4 {
        octets = octets.get(usize::from(octets.first()? & 15) * 4..)?;
    }
    let (head, rest) = octets.split_first_chunk::<8>()?;
    let (found, _) = rest.split_first_chunk::<8>()?;
    (head[0] == kind && head[1] == 0 && *found == token.to_be_bytes())
        .then(|| u16::from_be_bytes([head[6], head[7]]))
}

/// RFC 1071, over an even number of octets.
fn checksum(octets: &[u8]) -> u16 {
    let mut sum: u32 = octets.as_chunks().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_request_has_a_checksum_that_adds_up() {
        let packet = request(V4, 0x0123_4567_89ab_cdef, 7);
        assert_eq!(packet.len(), 64);
        assert_eq!(checksum(&packet), 0);
        // RFC 1071 §3.
        assert_eq!(!checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn only_an_answer_with_the_token_counts() {
        let mut packet = request(V4, 42, 7);
        assert_eq!(reply(V4, &packet, 42), None, "a request is no answer");
        packet[0] = 0;
        assert_eq!(reply(V4, &packet, 42), Some(7));
        assert_eq!(reply(V4, &packet, 43), None);
        let mut with_header = vec![0x45; 20];
        with_header.extend_from_slice(&packet);
        assert_eq!(reply(V4, &with_header, 42), Some(7));
        for length in 0..with_header.len() - PAYLOAD + 8 {
            assert_eq!(reply(V4, &with_header[..length], 42), None);
        }
        assert_eq!(reply(V4, &[0x4f; 30], 42), None);
    }

    #[test]
    fn losses_up_to_the_ratio_are_good() {
        let trip = Some(Duration::from_micros(1500));
        assert_eq!(
            judge(V4, &[trip, None], 500, None).unwrap(),
            "127.0.0.1: 1 of 2 packets back, 1.500 ms on average"
        );
        let Err(Failure::Bad(text)) = judge(V4, &[trip, None], 499, None) else { panic!("not bad") };
        assert_eq!(text, "127.0.0.1: 1 of 2 packets lost, 0 may be");
    }
}
