//! Slow downloads: answers that take their time, and what became of each.
//!
//! A client asks for a number of pieces and gets the gateway's name and that many of them, one every [`PAUSE`]. One thread
//! serves a gateway, one reads all downloads of a client.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::host::Host;

/// From one piece to the next.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Octets of a piece.
const PIECE: usize = 1024;

/// Serves downloads on its hosts until it is dropped.
pub struct Shelf {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Shelf {
    /// Serves on `port` of every address of these hosts.
    pub fn start(hosts: &[Host], port: u16) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let serve = |host: &Host| {
            let listener = host.enter(|| TcpListener::bind(("::", port))).expect("a listening socket");
            listener.set_nonblocking(true).expect("a socket option");
            let (name, stop) = (host.name.clone(), Arc::clone(&stop));
            std::thread::spawn(move || serve(&listener, &name, &stop))
        };
        let threads = hosts.iter().map(serve).collect();
        Self { stop, threads }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A download as the server has it.
struct Served {
    stream: TcpStream,
    /// Pieces that are to come; `None` until the client said how many it wants.
    left: Option<usize>,
}

fn serve(listener: &TcpListener, name: &str, stop: &AtomicBool) {
    let mut all: Vec<Served> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                all.push(Served { stream, left: None });
            }
        }
        all.retain_mut(|served| served.go_on(name));
        std::thread::sleep(PAUSE);
    }
}

impl Served {
    /// One more piece; whether there is more to do.
    fn go_on(&mut self, name: &str) -> bool {
        let Some(left) = self.left else {
            let mut wanted = [0; 2];
            return match self.stream.read(&mut wanted) {
                Ok(2) => {
                    self.left = Some(usize::from(u16::from_be_bytes(wanted)));
                    self.stream.write_all(format!("{name}\n").as_bytes()).is_ok()
                }
                Err(e) => e.kind() == ErrorKind::WouldBlock,
                Ok(_) => false,
            };
        };
        self.left = left.checked_sub(1);
        left > 0 && self.stream.write_all(&[b'.'; PIECE]).is_ok()
    }
}

/// What became of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    /// The gateway that serves it; empty while that is not known.
    pub gateway: String,
    /// When it ended, since the epoch, and whether it was whole.
    pub ended: Option<(Duration, bool)>,
}

/// Downloads that a client has under way, until it is dropped.
pub struct Downloads {
    all: Arc<Mutex<Vec<Download>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Downloads {
    /// Asks `target` for `count` downloads of so many pieces, each over a connection of its own.
    pub fn begin(client: &Host, target: SocketAddr, count: usize, pieces: u16) -> Self {
        let open = || {
            let stream = TcpStream::connect_timeout(&target, Duration::from_secs(10))?;
            stream.set_nonblocking(true)?;
            (&stream).write_all(&pieces.to_be_bytes())?;
            Ok::<_, std::io::Error>(stream)
        };
        let streams: Vec<_> = client.enter(|| (0..count).map(|_| open().expect("a connection")).collect());
        let none = Download { gateway: String::new(), ended: None };
        let all = Arc::new(Mutex::new(vec![none; count]));
        let stop = Arc::<AtomicBool>::default();
        let (ours, over) = (Arc::clone(&all), Arc::clone(&stop));
        let whole = usize::from(pieces) * PIECE;
        let thread = std::thread::spawn(move || {
            let mut reads: Vec<_> = streams.into_iter().map(|stream| Some((stream, Vec::new()))).collect();
            while !over.load(Ordering::Relaxed) && reads.iter().any(Option::is_some) {
                for (nth, slot) in reads.iter_mut().enumerate() {
                    let Some((stream, octets)) = slot else { continue };
                    let ended = read(stream, octets);
                    let end = octets.iter().position(|o| *o == b'\n');
                    let download = &mut ours.lock().expect("nobody panics with it")[nth];
                    if let Some(end) = end {
                        download.gateway = String::from_utf8_lossy(&octets[..end]).into_owned();
                    }
                    if let Some(fine) = ended {
                        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                        let is_whole = fine && end.is_some_and(|end| octets.len() - end - 1 == whole);
                        download.ended = Some((at, is_whole));
                        *slot = None;
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { all, stop, thread: Some(thread) }
    }

    /// How they stand.
    pub fn look(&self) -> Vec<Download> {
        self.all.lock().expect("nobody panics with it").clone()
    }

    /// How many of them a gateway serves.
    pub fn on(&self, gateway: &str) -> usize {
        self.look().iter().filter(|d| d.gateway == gateway).count()
    }

    /// Whether each has found its gateway.
    pub fn are_begun(&self) -> bool {
        self.look().iter().all(|d| !d.gateway.is_empty())
    }

    /// Whether each has ended.
    pub fn are_over(&self) -> bool {
        self.look().iter().all(|d| d.ended.is_some())
    }

    /// Those that ended before they were whole.
    pub fn broken(&self) -> usize {
        self.look().iter().filter(|d| d.ended.is_some_and(|(_, whole)| !whole)).count()
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Reads what there is; whether it ended, and well.
fn read(stream: &mut TcpStream, octets: &mut Vec<u8>) -> Option<bool> {
    let mut part = [0; 16 * 1024];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return Some(true),
            Ok(n) => octets.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
            Err(_) => return Some(false),
        }
    }
}
