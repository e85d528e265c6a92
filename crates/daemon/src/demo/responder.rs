//! The service of a gateway: answers every request with the gateway's name, or with an error while it is switched off. On a port of
//! its own it answers line after line of connections that stay.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The port that it listens on, on every address.
pub(super) const PORT: u16 = 8080;
/// The port for connections that stay.
pub(super) const LINES: u16 = 8081;
/// The line on standard input that switches it on.
pub(super) const ON: &str = "on";
/// The line that switches it off.
pub(super) const OFF: &str = "off";

/// Serves until standard input ends, which it does with the process that holds the other end.
pub(super) fn serve(name: &str) -> ExitCode {
    let bind = |port| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        listener.inspect_err(|e| eprintln!("error: cannot listen on port {port}: {e}"))
    };
    let (Ok(listener), Ok(lines)) = (bind(PORT), bind(LINES)) else { return ExitCode::FAILURE };
    let own = Arc::<str>::from(name);
    // Without it the client finds nobody there.
    std::thread::spawn(move || repeat_all(lines, &own).inspect_err(|e| eprintln!("error: {e}")));
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

/// Answers every line of every connection with the name.
fn repeat_all(listener: TcpListener, name: &Arc<str>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(repeat(stream, Arc::clone(name)));
        }
    })
}

/// Answers every line with the name until the client ends the connection.
async fn repeat(stream: tokio::net::TcpStream, name: Arc<str>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut piece = [0; 64];
    loop {
        stream.readable().await?;
        let lines = match stream.try_read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(n) => piece[..n].iter().filter(|&&octet| octet == b'\n').count(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        };
        // A few octets fit, or the client has stopped reading.
        stream.try_write(format!("{name}\n").repeat(lines).as_bytes())?;
    }
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
