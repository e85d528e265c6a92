//! A service whose health a test sets: an HTTP server that answers 200 or 503 per path.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::host::Host;

/// An HTTP server in a namespace. Every path is good until [`set`](Self::set) says otherwise. It ends when dropped.
pub struct Service {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    bad: Mutex<BTreeMap<String, bool>>,
    requests: AtomicUsize,
    stop: AtomicBool,
}

impl Service {
    /// Listens at `address` in `host`.
    pub fn start(host: &Host, address: impl Into<SocketAddr>) -> Self {
        let address = address.into();
        let listener = host.enter(|| TcpListener::bind(address)).expect("a listening socket");
        listener.set_nonblocking(true).expect("a socket option");
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => shared.answer(stream),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self { state }
    }

    /// Makes a path good or bad.
    pub fn set(&self, path: &str, good: bool) {
        self.state.bad.lock().unwrap().insert(path.to_owned(), !good);
    }

    /// Requests answered so far.
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) {
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
        let mut request = Vec::new();
        let mut part = [0; 2048];
        while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < 65536 {
            match stream.read(&mut part) {
                Ok(n) if n > 0 => request.extend_from_slice(&part[..n]),
                _ => return,
            }
        }
        let request = String::from_utf8_lossy(&request);
        let path = request.split(' ').nth(1).unwrap_or("/");
        let bad = self.bad.lock().unwrap().get(path).copied().unwrap_or(false);
        let status = if bad { "503 Service Unavailable" } else { "200 OK" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}
