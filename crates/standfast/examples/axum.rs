//! A service on axum that announces itself, with graceful shutdown. `ROUTER=192.0.2.1 VIP=198.51.100.10 cargo run --example axum`,
//! with the VIP on `lo` and the router's end at AS 64512.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header::CONNECTION};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{Router, routing::get};
use standfast::{Announcer, Peer, Vip};
use std::env;
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    let announcer = Announcer::builder()
        .asn(64513)
        .peer(Peer::new(env::var("ROUTER")?, 64512))
        .vip(Vip::new("web").prefix(env::var("VIP")?))
        .lease(Duration::from_secs(2))
        .on_event(|event| println!("{event}"))
        .start()?;

    // The event loop speaks for itself: one that is blocked reports nothing, and its lease ends.
    let reporter = announcer.clone();
    tokio::spawn(async move {
        let mut each = tokio::time::interval(Duration::from_millis(500));
        loop {
            each.tick().await;
            reporter.report(true);
        }
    });

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(from_fn_with_state(announcer.clone(), in_order));

    // Drain first, while everything is served still; only then axum stops to accept and finishes what is in flight.
    let mut terminate = signal(SignalKind::terminate())?;
    let leave = async move {
        terminate.recv().await;
        println!("{}", announcer.drain(Duration::from_secs(30)).await);
    };
    axum::serve(listener, app).with_graceful_shutdown(leave).await?;
    Ok(())
}

/// Counts the requests that a drain waits for, and asks clients to come back on another connection once it has begun.
async fn in_order(State(announcer): State<Announcer>, request: Request, next: Next) -> Response {
    let _counted = announcer.connection();
    let mut response = next.run(request).await;
    if announcer.is_draining() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
