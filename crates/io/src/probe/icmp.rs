//! What ICMP says about a datagram that did not arrive: which error, and from whom.
//!
//! A connected socket only tells an error's number, and of most ICMP errors nothing at all. With its error queue asked for,
//! the kernel tells every one, with its type, its code and the router that sent it. Sources: ip(7), ipv6(7), RFC 792,
//! RFC 1812 §5.2.7, RFC 4443 §3.

#![expect(unsafe_code, reason = "the error queue is read by system calls that the standard library lacks")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use super::run::Failure;
use crate::dial::{is_exhaustion, words};

/// Asks for the error queue of a datagram socket to `remote`. Where the kernel has none, errors are told by number alone.
pub(super) fn listen(socket: &impl AsFd, remote: IpAddr) {
    let (level, option) = match remote {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    let on: libc::c_int = 1;
    // SAFETY: the option takes an int, which outlives the call, and the descriptor is open.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// The failure that the socket told as `e` when it talked to `remote`.
pub(super) fn failed(socket: &impl AsFd, what: &str, remote: IpAddr, e: &io::Error) -> Failure {
    let text = match queued(socket) {
        Some(error) => error.text(remote),
        None => words(e),
    };
    let text = format!("{what}: {text}");
    if is_exhaustion(e) { Failure::Local(text) } else { Failure::Bad(text) }
}

/// An ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IcmpError {
    v6: bool,
    kind: u8,
    code: u8,
    from: Option<IpAddr>,
}

impl IcmpError {
    fn text(&self, remote: IpAddr) -> String {
        let name = match (self.v6, self.kind, self.code) {
            (false, 3, 0) => "network unreachable",
            (false, 3, 1) | (true, 1, 3) => "host unreachable",
            (false, 3, 2) => "protocol unreachable",
            (false, 3, 3) | (true, 1, 4) => "port unreachable",
            (false, 3, 4) | (true, 2, _) => "packet too big",
            (false, 3, 6) => "network unknown",
            (false, 3, 7) => "host unknown",
            (false, 3, 9 | 10 | 13) | (true, 1, 1) => "administratively prohibited",
            (false, 3, _) | (true, 1, _) => "destination unreachable",
            (true, 3, _) | (false, 11, _) => "hop limit exceeded",
            (true, 4, _) | (false, 12, _) => "parameter problem",
            _ => "error",
        };
        let name = if self.v6 && (self.kind, self.code) == (1, 0) { "no route to destination" } else { name };
        let code = if name == "destination unreachable" || name == "error" {
            format!(" (type {}, code {})", self.kind, self.code)
        } else {
            String::new()
        };
        match self.from {
            Some(from) if from != remote => format!("ICMP {name}{code}, says {from}"),
            _ => format!("ICMP {name}{code}"),
        }
    }
}

/// The newest ICMP error in the queue, which is empty afterwards.
fn queued(socket: &impl AsFd) -> Option<IcmpError> {
    let mut newest = None;
    // A flood of errors must not keep us here.
    for _ in 0..64 {
        match read(socket) {
            Ok(error) => newest = error.or(newest),
            Err(_) => break,
        }
    }
    newest
}

/// Takes one error out of the queue; `None` if it is not one of ICMP.
fn read(socket: &impl AsFd) -> io::Result<Option<IcmpError>> {
    // Of what was sent nothing is wanted back, and of the headers only what tells about the error. Words of 8 octets, for
    // the kernel aligns what it puts there.
    let mut control = [0_u64; 64];
    let mut message = MaybeUninit::<libc::msghdr>::zeroed();
    // SAFETY: all octets nought are a valid header without buffers; the control buffer outlives the call and has the length told.
    let received = unsafe {
        let message = &mut *message.as_mut_ptr();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        libc::recvmsg(socket.as_fd().as_raw_fd(), message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled the header, and each header of the control buffer that CMSG_FIRSTHDR and CMSG_NXTHDR give
    // lies within it; what follows a header is read without alignment, and only as far as its own length says.
    unsafe {
        let message = message.assume_init_ref();
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = next.as_ref() {
            let data = libc::CMSG_DATA(next);
            #[allow(clippy::unnecessary_cast, reason = "of another type with musl")]
            let length = (header.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let told = matches!(
                (header.cmsg_level, header.cmsg_type),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if told {
                return Ok(parse(std::slice::from_raw_parts(data, length)));
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
    Ok(None)
}

/// A `sock_extended_err` and the address of the sender behind it.
fn parse(octets: &[u8]) -> Option<IcmpError> {
    let (head, sender) = octets.split_first_chunk::<16>()?;
    let v6 = match head[4] {
        2 => false,
        3 => true,
        // Of this host or of none.
        _ => return None,
    };
    let (family, rest) = sender.split_first_chunk::<2>()?;
    let from = match libc::c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => rest.get(2..).and_then(|a| a.first_chunk::<4>()).map(|a| Ipv4Addr::from(*a).into()),
        libc::AF_INET6 => {
            rest.get(6..).and_then(|a| a.first_chunk::<16>()).map(|a| Ipv6Addr::from(*a).into())
        }
        _ => None,
    };
    Some(IcmpError { v6, kind: head[5], code: head[6], from })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    #[test]
    fn a_closed_port_is_named_and_so_is_who_says_so_if_it_is_another() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        listen(&socket, closed.ip());
        socket.connect(closed).unwrap();
        socket.send(b"?").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let e = socket.recv(&mut [0; 8]).unwrap_err();
        let Failure::Bad(text) = failed(&socket, "x", closed.ip(), &e) else { panic!("not bad") };
        assert_eq!(text, "x: ICMP port unreachable");
        let far = IcmpError { v6: false, kind: 3, code: 13, from: Some("192.0.2.1".parse().unwrap()) };
        assert_eq!(far.text(closed.ip()), "ICMP administratively prohibited, says 192.0.2.1");
        let odd = IcmpError { v6: true, kind: 1, code: 9, from: None };
        assert_eq!(odd.text(closed.ip()), "ICMP destination unreachable (type 1, code 9)");
        // The queue is empty then, and asking it does not block.
        let start = Instant::now();
        assert_eq!(queued(&socket), None);
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn half_an_error_is_none() {
        let mut whole = vec![0; 16];
        whole[4] = 2;
        whole.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        whole.extend_from_slice(&[0, 0, 192, 0, 2, 1]);
        assert_eq!(parse(&whole).unwrap().from, Some("192.0.2.1".parse().unwrap()));
        assert_eq!(parse(&whole[..20]).unwrap().from, None);
        for length in 0..18 {
            assert_eq!(parse(&whole[..length]), None);
        }
    }
}
