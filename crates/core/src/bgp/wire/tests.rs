//! What is written is read again as it was meant.

use super::*;
use crate::machine::Rng;

fn random_path(rng: &mut Rng, next_hop: IpAddr) -> Path {
    let some = |rng: &mut Rng| rng.below(2) == 0;
    let n = |rng: &mut Rng| rng.next_u64() as u32;
    Path {
        next_hop,
        as_path: (0..rng.below(6)).map(|_| 1 + rng.below(u64::from(u32::MAX) - 1) as u32).collect(),
        local_pref: some(rng).then(|| n(rng)),
        med: some(rng).then(|| n(rng)),
        communities: (0..rng.below(40)).map(|i| n(rng) | i as u32).collect(),
        large_communities: (0..rng.below(5)).map(|_| (n(rng), n(rng), n(rng))).collect(),
        extended_communities: (0..rng.below(5)).map(|_| rng.next_u64().to_be_bytes()).collect(),
    }
}

fn decoded(octets: &Bytes) -> Message {
    let mut buffer = BytesMut::from(&octets[..]);
    let message = next_message(&mut buffer).unwrap().unwrap();
    assert!(buffer.is_empty());
    message
}

fn update_of(octets: &Bytes, four_octet_as: bool, internal: bool) -> Update {
    match decoded(octets) {
        Message::Update(update) => {
            parse_update(&update, four_octet_as, (!internal).then_some(64513), false).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_announcement_is_read_as_it_was_meant() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let v6 = rng.below(2) == 0;
        let next_hop: IpAddr = match v6 || rng.below(4) == 0 {
            true => "2001:db8::1".parse().unwrap(),
            false => "192.0.2.1".parse().unwrap(),
        };
        let path = random_path(&mut rng, next_hop);
        let prefixes: Vec<Prefix> = (0..1 + rng.below(50))
            .map(|i| match v6 {
                true => Prefix::host(Ipv4Addr::from_bits(i as u32).to_ipv6_mapped().into()),
                false => Prefix::host(Ipv4Addr::from_bits(0xc000_0000 + i as u32).into()),
            })
            .collect();
        let four = rng.below(2) == 0;
        let octets = announce(&prefixes, &path, four).unwrap();
        assert!(octets.len() <= usize::from(MAX_MESSAGE) && fits(prefixes[0], &path, four));
        let update = update_of(&octets, four, true);
        assert_eq!(update.malformed, None, "seed {seed}");
        assert_eq!(update.withdrawn, []);
        let want: Vec<_> = prefixes.iter().map(|p| (*p, path.clone())).collect();
        assert_eq!(update.announced, want, "seed {seed}");
        let withdrawal = withdraw(&prefixes, next_hop.is_ipv6()).unwrap();
        assert_eq!(update_of(&withdrawal, four, true).withdrawn, prefixes);
    }
}

#[test]
fn an_open_is_read_as_it_was_meant() {
    for bits in 0..32u32 {
        let on = |n: u32| bits & 1 << n != 0;
        let asn = if on(0) { 64513 } else { 4_200_000_011 };
        let open = Open {
            asn,
            two_octet_asn: u16::try_from(asn).unwrap_or(AS_TRANS),
            four_octet_as: true,
            hold: Duration::from_secs(9),
            router_id: Ipv4Addr::new(192, 0, 2, 11),
            families: Some((on(1) || !on(2), on(2))),
            extended_next_hop: on(3),
            route_refresh: true,
            graceful_restart: on(4).then_some(GracefulRestart {
                restarting: on(0),
                notification: on(1),
                time: Duration::from_secs(4095),
            }),
        };
        let Message::Open(read) = decoded(&open.encode()) else { panic!() };
        assert_eq!(read, open);
    }
}

#[test]
fn a_restart_time_of_more_than_twelve_bits_does_not_spill_into_the_flags() {
    let open = Open {
        asn: 1,
        two_octet_asn: 1,
        four_octet_as: true,
        hold: Duration::from_secs(9),
        router_id: Ipv4Addr::new(192, 0, 2, 11),
        families: Some((true, false)),
        extended_next_hop: false,
        route_refresh: true,
        graceful_restart: Some(GracefulRestart {
            restarting: false,
            notification: false,
            time: Duration::from_secs(100_000),
        }),
    };
    let Message::Open(read) = decoded(&open.encode()) else { panic!() };
    let gr = read.graceful_restart.unwrap();
    assert_eq!((gr.restarting, gr.notification, gr.time.as_secs()), (false, false, 4095));
}

#[test]
fn a_notification_is_read_as_it_was_meant() {
    for code in 0..=255u8 {
        for data in [&b""[..], b"x", &[7; 2000]] {
            let n = Notification { code, subcode: code ^ 1, data: Bytes::copy_from_slice(data) };
            let Message::Notification(read) = decoded(&notification(&n)) else { panic!() };
            assert_eq!(read, n);
        }
    }
}

#[test]
fn a_route_that_cannot_fit_is_known_not_to() {
    let mut path = Path::new("192.0.2.1".parse().unwrap());
    let prefix = Prefix::host("198.51.100.10".parse().unwrap());
    for n in 900..1100 {
        path.communities = (0..n).collect();
        assert_eq!(fits(prefix, &path, true), announce(&[prefix], &path, true).is_some(), "{n}");
    }
    assert!(!fits(prefix, &path, true));
}
