//! What the octets of a fuzzer mean: a stream from a peer, or inputs of a whole node. The laws are looked at after every step.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use standfast_core::bfd::wire::{Packet, is_authentic};
use standfast_core::bfd::{self, State};
use standfast_core::health::Verdict;
use standfast_core::node::{ConnId, Input, KernelKey, LocalAddress, Node, Output};
use standfast_core::plan::{self, BfdAuth, FailAction, PeerAsn, Secret};
use standfast_core::{Machine, Time};

use super::bfd::{BfdBench, key, their};
use super::octets::keepalive;
use super::peer::{Bench, THEM, config, p, secs, their_open};
use super::plan::{add_peer, add_vip, empty, id, listener, peer, vip};

/// The first octet says how the session stands and how the rest is cut into pieces.
pub(crate) fn octets(data: &[u8]) {
    let Some((&how, stream)) = data.split_first() else { return };
    let mut config = config();
    config.learn = how & 2 != 0;
    config.graceful_restart = (how & 4 != 0).then_some(secs(60));
    config.extended_next_hop = how & 8 != 0;
    let mut bench = Bench::new(config);
    let conn = bench.answer();
    if how & 1 != 0 {
        bench.receive(conn, &[their_open(), keepalive()].concat());
    }
    for piece in stream.chunks(1 + usize::from(how >> 4) * 97) {
        bench.receive(conn, piece);
    }
    bench.run(secs(30));
    for update in &bench.learned {
        assert!(update.announced.iter().all(|(_, path)| !path.as_path.contains(&64513)));
    }
}

/// The first octet says how the session stands, the second how long a datagram is at most, and how much time passes after each.
///
/// Octets 8 to 12 of a datagram are our discriminator, where the first octet says so: no fuzzer would find it.
pub(crate) fn datagrams(data: &[u8]) {
    let Some((&[how, length], rest)) = data.split_first_chunk() else { return };
    let auth = BfdAuth { meticulous: how & 8 != 0, key_id: 1, key: Secret::new("key".into()) };
    let plan = plan::Bfd {
        auth: (how & 4 != 0).then_some(auth.clone()),
        passive: how & 16 != 0,
        ..super::bfd::plan()
    };
    let mut bench = BfdBench::new(plan);
    for state in [State::Down, State::Init].into_iter().take(usize::from(how & 3)) {
        if how & 16 == 0 {
            bench.say(their(state));
        }
    }
    for datagram in rest.chunks(1 + usize::from(length)) {
        let mut datagram = datagram.to_vec();
        if how & 32 != 0
            && let (Some(theirs), Some(last)) = (datagram.get_mut(8..12), bench.sent.last())
        {
            theirs.copy_from_slice(&last.1.my_discriminator.to_be_bytes());
        }
        if let Ok((packet, section)) = Packet::decode(&datagram) {
            assert_eq!(section.is_some(), datagram[1] & 4 != 0);
            let again = packet.encode(None);
            assert_eq!(Packet::decode(&again), Ok((packet, None)));
            // Only one who has the key makes a digest of it.
            assert!(!is_authentic(&datagram, &auth) || section.is_some());
        }
        let before = bench.sent.len();
        bench.arrive(Some(255), &datagram);
        assert!(bench.sent.len() <= before + 2, "one packet is answered by {}", bench.sent.len() - before);
        bench.run(Duration::from_millis(u64::from(length) * u64::from(how >> 6)));
        assert!(bench.machine.deadline().is_none_or(|(at, _)| at > bench.now));
    }
    bench.handle(bfd::Input::Wanted(standfast_core::table::Change::Remove(key())));
    bench.run(secs(5));
    assert!(
        bench.machine.deadline().is_none(),
        "what is switched off is over: {:?}",
        bench.machine.deadline()
    );
}

/// Each input is an octet that says what happens, one or two that say to whom, and for octets a length.
pub(crate) fn inputs(data: &[u8]) {
    let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, 11));
    let mut web = vip("web", &["198.51.100.10/32", "2001:db8:100::10/128"], &["http"]);
    web.manage = Some("lo".into());
    web.fail_action = FailAction::LowerPriority;
    web.withdraw_after = Some(secs(5));
    add_vip(&mut plan, web, &["http"]);
    add_peer(&mut plan, peer("front", Ipv4Addr::new(192, 0, 2, 1), PeerAsn::Number(THEM.into())));
    plan.listener = Some(listener("192.0.2.0/28", &[("web", "198.51.100.10/32")]));
    let mut node = Node::new(Time::from_secs(1), plan, 7);
    let mut now = Time::from_secs(1);
    let mut dialled = Vec::new();
    let mut octets = data.iter().copied();
    while let Some(what) = octets.next() {
        let who = octets.next().unwrap_or(0);
        let conn = match who & 0x40 {
            0 => ConnId(ConnId::ACCEPTED.0 + u64::from(who & 7)),
            _ => dialled.last().copied().unwrap_or(ConnId(1)),
        };
        let mut out = Vec::new();
        match what % 16 {
            0..3 => {
                now = node.deadline().map_or(now, |(at, _)| at.max(now));
                now = now + Duration::from_millis(u64::from(who) * u64::from(what % 3));
                node.tick(now, &mut out);
                assert!(node.deadline().is_none_or(|(at, _)| at > now), "{:?} at {now}", node.deadline());
            }
            3 => {
                let remote = SocketAddr::from(([192, 0, 2, who & 15], 179));
                let local = SocketAddr::from(([192, 0, 2, 11], 179));
                node.handle(now, Input::Connected { conn, local, remote }, &mut out);
            }
            4 => node.handle(now, Input::Received(conn, their_open().into()), &mut out),
            5 => node.handle(now, Input::Received(conn, keepalive().into()), &mut out),
            6..9 => {
                let length = octets.next().unwrap_or(0);
                let piece: Vec<u8> = octets.by_ref().take(length.into()).collect();
                node.handle(now, Input::Received(conn, Bytes::from(piece)), &mut out);
            }
            9 => node.handle(now, Input::Written(conn, usize::from(who & 3) * 30_000), &mut out),
            10 => node.handle(now, Input::Closed(conn, "reset".into()), &mut out),
            11 | 12 => {
                let verdict = if who & 1 == 0 { Verdict::good("") } else { Verdict::bad("") };
                node.handle(now, Input::Reported(id("web", "http"), verdict), &mut out);
            }
            13 => {
                let all = ["198.51.100.10", "2001:db8:100::10"].into_iter().enumerate();
                let on = all
                    .filter(|(i, _)| who & 1 << i != 0)
                    .map(|(_, a)| LocalAddress { address: a.parse().unwrap(), interface: "lo".into() });
                node.handle(now, Input::Addresses(on.collect()), &mut out);
            }
            14 => {
                let input = match who & 7 {
                    0 | 1 => Input::LowerPriorityFile("web".into(), who & 1 == 0),
                    2 => Input::DrainVip { vip: None, deadline: Some(secs(3)) },
                    3 => Input::UndrainVip { vip: None },
                    n => Input::Connections("web".into(), Ok(u64::from(n) - 4)),
                };
                node.handle(now, input, &mut out);
            }
            _ if who < 4 => node.handle(now, Input::Stop("stop".into()), &mut out),
            _ => {
                let key = KernelKey::Route(p("198.51.100.10/32"));
                node.handle(now, Input::Kernel(key, Err("no".into())), &mut out);
            }
        }
        dialled.extend(out.iter().filter_map(|o| match o {
            Output::Dial(dial) => Some(dial.conn),
            _ => None,
        }));
    }
    node.status(now);
}
