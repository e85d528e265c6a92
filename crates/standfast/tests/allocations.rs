//! A report keeps no memory, however often it is made and whatever it says.

#![allow(clippy::unwrap_used)]

use standfast::{Announcer, Peer, Verdict, Vip};
use std::time::{Duration, Instant};

#[test]
fn a_report_allocates_nothing() {
    let announcer = Announcer::builder()
        .asn(64513)
        .router_id([192, 0, 2, 11].into())
        .peer(Peer::new("127.0.0.1", 64512).port(1))
        .vip(Vip::new("web").prefix("198.51.100.10/32").bandwidth(1_000))
        .lease(Duration::from_secs(3))
        .start()
        .unwrap();
    let vip = announcer.vip("web").unwrap();
    let reason = String::from("the queue is full");
    let count: u32 = 100_000;
    let mut took = Duration::ZERO;
    let allocated = allocation_counter::measure(|| {
        let at = Instant::now();
        for n in 0..count {
            announcer.report(true);
            announcer.report(Verdict::bad("a word of its own"));
            vip.report(Verdict::bad(reason.as_str()));
            let _ = announcer.share((n % 100) as u8);
            drop(announcer.connection());
        }
        took = at.elapsed();
    });
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
    let mut good = Duration::ZERO;
    let allocated = allocation_counter::measure(|| {
        let at = Instant::now();
        (0..count).for_each(|_| announcer.report(true));
        good = at.elapsed();
    });
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
    eprintln!("a good report takes {:?}, five calls of every kind {:?}", good / count, took / count);
}
