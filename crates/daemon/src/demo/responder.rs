//! The service of a gateway: answers every request with the gateway's name, or with an error while it is switched off.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The port that it listens on, on every address.
pub(super) const PORT: u16 = 8080;
/// The line on standard input that switches it on.
pub(super) const ON: &str = "on";
/// The line that switches it off.
pub(super) const OFF: &str = "off";

/// Serves until standard input ends, which it does with the process that holds the other end.
pub(super) fn serve(name: &str) -> ExitCode {
    let listener = match TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)) {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("error: cannot listen on port {PORT}: {e}");
            return ExitCode::FAILURE;
        }
    };
    let on = Arc::new(AtomicBool::new(true));
    let (name, switch) = (Arc::<str>::from(name), Arc::clone(&on));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (name, on) = (Arc::clone(&name), on.load(Ordering::Relaxed));
            // A request that the client broke off is the client's affair.
            std::thread::spawn(move || answer(stream, &name, on).ok());
        }
    });
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        switch.store(line == ON, Ordering::Relaxed);
    }
    ExitCode::SUCCESS
}

fn answer(mut stream: TcpStream, name: &str, on: bool) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut head = [0; 1024];
    let mut length = 0;
    // A request without a body is whole at its first empty line.
    while !head[..length].windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut head[length..])? {
            0 => return Ok(()),
            n => length += n,
        }
    }
    let status = if on { "200 OK" } else { "503 Service Unavailable" };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{name}\n",
        name.len() + 1
    );
    stream.write_all(text.as_bytes())
}
