//! Connections that the client holds open while the fleet changes, and how many of them break on gateways that are still there.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{responder, stage};

/// Connections held to each VIP.
pub(super) const HELD: usize = 400;
/// What the VIPs are called: the hashing that they show, the better one last.
pub(super) const HASHINGS: [(&str, Ipv4Addr); 2] = [("plain", stage::PLAIN_VIP), ("resilient", stage::VIP)];
/// After this long a line is given up: TCP has repeated it four times by then.
const PATIENCE: Duration = Duration::from_secs(4);

/// Connections to one VIP.
pub(super) struct Held {
    hashing: &'static str,
    /// Each with the gateway that it is on.
    connections: Vec<(TcpStream, String)>,
}

/// What became of the connections of one VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) hashing: &'static str,
    pub(super) event: &'static str,
    /// Connections on gateways that were there all the time.
    pub(super) on_survivors: usize,
    /// Those of them that broke.
    pub(super) broken: usize,
}

impl Held {
    /// Opens them to each VIP, from the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Vec<Self>> {
        let open = |(hashing, vip): (_, Ipv4Addr)| {
            let target = SocketAddr::from((vip, responder::LINES));
            let connections = (0..HELD).map(|_| connect(target)).collect::<io::Result<_>>();
            connections.map(|connections| Self { hashing, connections })
        };
        HASHINGS.into_iter().map(open).collect()
    }

    /// Sends a line on each and awaits the answers. Those on `lost` are not counted: it went away.
    pub(super) fn fate(mut self, event: &'static str, lost: Option<&str>) -> Fate {
        self.connections.retain(|(_, gateway)| Some(&**gateway) != lost);
        let sent: Vec<bool> =
            self.connections.iter_mut().map(|(stream, _)| stream.write_all(b"?\n").is_ok()).collect();
        let deadline = Instant::now() + PATIENCE;
        let answered =
            |((stream, _), sent): (&mut (TcpStream, String), bool)| sent && hear(stream, deadline).is_ok();
        let whole = self.connections.iter_mut().zip(sent).map(answered).filter(|&whole| whole).count();
        let on_survivors = self.connections.len();
        Fate { hashing: self.hashing, event, on_survivors, broken: on_survivors - whole }
    }
}

fn connect(target: SocketAddr) -> io::Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.write_all(b"?\n")?;
    let gateway = hear(&mut stream, Instant::now() + PATIENCE)?;
    Ok((stream, gateway))
}

/// The next line.
fn hear(stream: &mut TcpStream, deadline: Instant) -> io::Result<String> {
    let mut line = Vec::new();
    let mut piece = [0; 64];
    while line.last() != Some(&b'\n') {
        // Whoever has answered in time is heard, however late it is.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => line.extend_from_slice(&piece[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A connection to somebody who answers each line with "gw1" and ends after so many.
    fn connection(lines: usize) -> (TcpStream, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..lines {
                stream.read_exact(&mut [0; 2]).unwrap();
                stream.write_all(b"gw1\n").unwrap();
            }
        });
        connect(target).unwrap()
    }

    #[test]
    fn a_connection_that_ended_is_broken_and_one_on_a_lost_gateway_is_not_counted() {
        let held = |event, lost| {
            let held = Held { hashing: "plain", connections: vec![connection(2), connection(1)] };
            held.fate(event, lost)
        };
        let fate = held("drained", None);
        assert_eq!(fate, Fate { hashing: "plain", event: "drained", on_survivors: 2, broken: 1 });
        assert_eq!(held("killed", Some("gw1")).on_survivors, 0);
    }
}
