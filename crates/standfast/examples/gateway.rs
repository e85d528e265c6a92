//! A gateway that announces itself: plain threads, and the whole policy. `ROUTER=192.0.2.1 VIP=198.51.100.10
//! PAGE=/srv/www/index.html cargo run --example gateway`, with the VIP on `lo` and the router's end at AS 64512.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use standfast::{Announcer, Peer, Vip};
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use std::{env, fs, thread};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (router, vip, page) = (env::var("ROUTER")?, env::var("VIP")?, env::var("PAGE")?);
    // Bind first: what is announced must be able to serve.
    let listener = TcpListener::bind("0.0.0.0:80")?;
    let asked = page.clone();
    let announcer = Announcer::builder()
        .asn(64513)
        .peer(Peer::new(router, 64512))
        .vip(Vip::new("web").prefix(vip))
        // Asked once a second: announced after five good answers, withdrawn on the first bad one, or after 3 s without any.
        .healthy(move || fs::read(&asked))
        .start()?;
    let events = announcer.events();
    thread::spawn(move || events.for_each(|event| println!("{event}")));
    let accepting = announcer.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (announcer, page) = (accepting.clone(), page.clone());
            thread::spawn(move || serve(stream, &announcer, &page));
        }
    });
    Signals::new([SIGTERM, SIGINT])?.forever().next();
    // No new connections, then wait for those that are here, then withdraw and close. Serving goes on meanwhile.
    println!("{}", announcer.drain(Duration::from_secs(30)).wait());
    Ok(())
}

fn serve(mut stream: TcpStream, announcer: &Announcer, page: &str) -> Result<()> {
    let _counted = announcer.connection();
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    loop {
        while !lines.next().transpose()?.ok_or(std::io::ErrorKind::UnexpectedEof)?.is_empty() {}
        let page = fs::read(page);
        // What a request has found out need not wait for the next second.
        let (status, body) = match &page {
            Ok(body) => ("200 OK", &body[..]),
            Err(_) => ("503 Service Unavailable", &b"sick\n"[..]),
        };
        announcer.report(page.as_ref());
        let close = if announcer.is_draining() { "Connection: close\r\n" } else { "" };
        let head = format!("HTTP/1.1 {status}\r\n{close}Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat())?;
        if !close.is_empty() {
            return Ok(());
        }
    }
}
