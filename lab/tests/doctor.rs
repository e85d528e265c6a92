//! What `standfast doctor` says of a host: nothing if it is sound, and one thing for one fault.

use serde_json::Value;
use standfast_lab::*;

/// Runs `standfast doctor` in `host`: its exit code, and the findings.
fn doctor(host: &Host, config: &str, flags: &str) -> (i32, Value) {
    let bin = standfast_bin().expect("the lab needs it");
    let text =
        host.attempt(&format!("{} doctor -c {config} --json {flags}; echo \" code $?\"", bin.display()));
    let (said, code) = text.split_once(" code ").unwrap_or_else(|| panic!("{text}"));
    let code =
        code.split_whitespace().next().and_then(|c| c.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    (code, serde_json::from_str(said).unwrap_or_else(|e| panic!("{e}: {text}")))
}

fn ids(said: &Value) -> Vec<String> {
    let findings = said["findings"].as_array().expect("findings");
    findings.iter().map(|f| f["id"].as_str().expect("a name").to_owned()).collect()
}

/// Makes a host what its role wants it to be.
fn sound(host: &Host, forwards: bool) {
    let forwards = i32::from(forwards);
    host.run(&format!(
        "sysctl -qw net.ipv4.ip_forward={forwards} net.ipv6.conf.all.forwarding={forwards}
         sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1
         for i in all default eth0 eth1; do
           sysctl -qw net.ipv4.conf.$i.rp_filter=2 net.ipv4.conf.$i.send_redirects=0 net.ipv4.conf.$i.arp_ignore=0
         done
         sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.lo.disable_ipv6=0
         sysctl -qw net.ipv4.ping_group_range='0 2147483647'"
    ));
}

/// A host with two interfaces, on the switch and on a cable of its own.
fn two_ways(lab: &Lab, name: &str, number: u8) -> Host {
    let host = lab.host(name, number);
    let other = lab.host(&format!("{name}o"), number + 100);
    lab.link((&host, "eth1", "203.0.113.1/24"), (&other, "eth1", "203.0.113.2/24"));
    host
}

/// A fault: what it is, the command that plants it, the command that mends it, the finding, and whether `--fix` may mend it.
type Fault = (&'static str, &'static str, &'static str, &'static str, bool);

/// Plants each fault alone on a sound host.
fn each(host: &Host, config: &str, faults: &[Fault]) {
    let fine = |when: &str| {
        let (code, said) = doctor(host, config, "");
        assert_eq!((code, ids(&said)), (0, Vec::new()), "{when}: {said:#}");
    };
    fine("sound");
    for (name, plant, mend, id, safe) in faults {
        host.run(plant);
        let (code, said) = doctor(host, config, "");
        assert_eq!((code, ids(&said)), (1, vec![(*id).to_owned()]), "{name}: {said:#}");
        for key in ["why", "mend", "what"] {
            assert!(said["findings"][0][key].as_str().is_some_and(|t| t.len() > 5), "{name}: {key}");
        }
        assert_eq!(said["findings"][0]["sysctls"].is_array(), *safe, "{name}: {said:#}");
        let (code, fixed) = doctor(host, config, "--fix");
        assert_eq!(code, i32::from(!safe), "{name}: {fixed:#}");
        host.run(mend);
        fine(&format!("{name}, mended"));
    }
}

#[test]
fn a_sound_gateway_is_left_alone_and_each_fault_of_one_is_found() {
    let Some(lab) = lab!() else { return };
    let g = two_ways(&lab, "g", 11);
    sound(&g, false);
    g.run("ip addr add 198.51.100.10/32 dev lo; ip -6 addr add 2001:db8:100::10/128 dev lo");
    g.run("ip route add default via 192.0.2.1");
    let config = lab.file("g.yaml");
    let text = Announcer::new(&g, 64513)
        .neighbor([192, 0, 2, 1], 64512, "")
        .vip("web", &["198.51.100.10/32", "2001:db8:100::10/128"], "/", "require_local_address: true")
        .vip("near", &["192.0.3.10/32"], "/", "address: { manage: true, interface: lo }")
        .yaml();
    std::fs::write(&config, text).unwrap();
    each(
        &g,
        config.to_str().unwrap(),
        &[
            (
                "it forwards",
                "sysctl -qw net.ipv4.ip_forward=1",
                "sysctl -qw net.ipv4.ip_forward=0",
                "forwarding-on",
                false,
            ),
            (
                "it forwards IPv6",
                "sysctl -qw net.ipv6.conf.all.forwarding=1",
                "sysctl -qw net.ipv6.conf.all.forwarding=0",
                "forwarding6-on",
                false,
            ),
            // The larger of the two counts: the interface's own 0 does not help.
            (
                "strict in `all`",
                "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth1.rp_filter=0",
                "",
                "rp-filter",
                true,
            ),
            (
                "IPv6 off on lo",
                "sysctl -qw net.ipv6.conf.lo.disable_ipv6=1",
                "ip -6 addr add 2001:db8:100::10/128 dev lo",
                "ipv6-disabled",
                true,
            ),
            (
                "a VIP on a real interface",
                "ip addr add 198.51.100.10/32 dev eth1",
                "ip addr del 198.51.100.10/32 dev eth1",
                "vip-on-nic",
                false,
            ),
            (
                "a VIP that is nowhere",
                "ip addr del 198.51.100.10/32 dev lo",
                "ip addr add 198.51.100.10/32 dev lo",
                "vip-absent",
                false,
            ),
            (
                "lo is down",
                "ip link set lo down",
                "ip link set lo up; ip -6 addr add 2001:db8:100::10/128 dev lo",
                "lo-down",
                false,
            ),
            (
                "answers leave by another way",
                "ip route replace default via 192.0.2.77",
                "ip route replace default via 192.0.2.1",
                "way-back",
                false,
            ),
            (
                "the neighbour is elsewhere",
                "ip addr del 192.0.2.11/24 dev eth0; ip addr add 192.0.9.11/24 dev eth0",
                "ip addr del 192.0.9.11/24 dev eth0; ip addr add 192.0.2.11/24 dev eth0; ip route add default via 192.0.2.1",
                "multihop",
                false,
            ),
        ],
    );
    // A network that holds a VIP comes with two findings more: who answers there, and in whose name it asks.
    g.run("sysctl -qw net.ipv4.conf.eth1.arp_announce=0; ip addr add 192.0.3.1/24 dev eth1");
    let (_, said) = doctor(&g, config.to_str().unwrap(), "");
    assert_eq!(ids(&said), ["arp-announce", "arp-ignore", "vip-in-transit"], "{said:#}");
    let (code, said) = doctor(&g, config.to_str().unwrap(), "--fix");
    assert_eq!((code, ids(&said)), (1, vec!["vip-in-transit".to_owned()]), "{said:#}");
    assert_eq!(g.run("cat /proc/sys/net/ipv4/conf/eth1/arp_ignore").trim(), "1");
}

#[test]
fn a_sound_listener_is_left_alone_and_each_fault_of_one_is_found() {
    let Some(lab) = lab!() else { return };
    let l = two_ways(&lab, "l", 1);
    sound(&l, true);
    l.run("ip addr add 203.0.113.50/32 dev lo");
    l.run("sysctl -qw net.ipv4.fib_multipath_hash_seed=4711 net.ipv4.fib_multipath_hash_fields=55 net.ipv4.fib_multipath_hash_policy=3");
    let config = lab.file("l.yaml");
    let text = format!(
        "schema: v1\nrouter: {{ asn: 64512, router_id: {v4}, local_address: {v4} }}\napi: {{ listen: \"{API}\" }}\n\
         listener:\n  hash_seed: 4711\n  accept:\n    - {{ name: members, range: 192.0.2.0/24, peer_asn: 64513, hold_time: 9s }}\n  vips:\n\
         \x20   - {{ name: web, prefix: 198.51.100.10/32, hashing: consistent }}\n    - {{ name: web6, prefix: \"2001:db8:100::10/128\" }}\n\
         \x20   - {{ name: pub, prefix: 198.51.100.11/32, public: {{ address: 203.0.113.50, ports: [80] }} }}\n",
        v4 = l.v4
    );
    std::fs::write(&config, text).unwrap();
    each(
        &l,
        config.to_str().unwrap(),
        &[
            ("it does not forward", "sysctl -qw net.ipv4.ip_forward=0", "", "forwarding-off", true),
            (
                "it does not forward IPv6",
                "sysctl -qw net.ipv6.conf.all.forwarding=0",
                "",
                "forwarding6-off",
                true,
            ),
            (
                "addresses alone, consistent",
                "sysctl -qw net.ipv4.fib_multipath_hash_policy=0",
                "",
                "hash-fields",
                true,
            ),
            (
                "fields without ports",
                "sysctl -qw net.ipv6.fib_multipath_hash_policy=3 net.ipv6.fib_multipath_hash_fields=7",
                "",
                "hash-policy6",
                true,
            ),
            (
                "addresses alone, IPv6",
                "sysctl -qw net.ipv6.fib_multipath_hash_policy=0",
                "",
                "hash-policy6",
                true,
            ),
            (
                "a hash that others make",
                "sysctl -qw net.ipv4.fib_multipath_hash_policy=1",
                "",
                "hash-fields",
                true,
            ),
            ("another seed", "sysctl -qw net.ipv4.fib_multipath_hash_seed=1", "", "hash-seed", true),
            (
                "strict on one",
                "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=1",
                "",
                "rp-filter",
                true,
            ),
            ("strict to come", "sysctl -qw net.ipv4.conf.default.rp_filter=1", "", "default-trap", true),
            (
                "the VIP here",
                "ip addr add 198.51.100.10/32 dev lo",
                "ip addr del 198.51.100.10/32 dev lo",
                "vip-here",
                false,
            ),
            (
                "a better route",
                "ip route add 198.51.100.10/32 via 203.0.113.2",
                "ip route del 198.51.100.10/32 via 203.0.113.2",
                "shadowed",
                false,
            ),
            (
                "a public address that nobody has",
                "ip addr del 203.0.113.50/32 dev lo",
                "ip addr add 203.0.113.50/32 dev lo",
                "public-nowhere",
                false,
            ),
            (
                "what is forwarded is dropped",
                "nft 'table ip f { chain forward { type filter hook forward priority 0; policy drop; }; }'",
                "nft delete table ip f",
                "forward-drop",
                false,
            ),
            (
                "the interface of the members is down",
                "ip link set eth0 down",
                "ip link set eth0 up",
                "link-down",
                false,
            ),
            ("two MTUs", "ip link set eth1 mtu 1400", "ip link set eth1 mtu 1500", "mtu", false),
            (
                "one interface that redirects",
                "ip link del eth1; sysctl -qw net.ipv4.conf.all.send_redirects=1",
                "",
                "redirects",
                true,
            ),
        ],
    );
    // Another hash would move the flows of a table in use: then it is told and left.
    l.run("ip route add 198.51.100.99/32 via 192.0.2.9 proto 185; sysctl -qw net.ipv4.fib_multipath_hash_policy=0");
    let (code, said) = doctor(&l, config.to_str().unwrap(), "--fix");
    assert_eq!((code, ids(&said)), (1, vec!["hash-fields".to_owned()]), "{said:#}");
    assert_eq!(l.run("cat /proc/sys/net/ipv4/fib_multipath_hash_policy").trim(), "0");
}

#[test]
fn what_holds_a_port_and_what_peers_agreed_to_is_found() {
    let Some(lab) = lab!("bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    sound(&g, false);
    let text = |more: &str| {
        Announcer::new(&g, 64513)
            .bgp(more)
            .neighbor(l.v4, 64512, "")
            .vip("web", &["198.51.100.10/32"], "/", "")
            .yaml()
    };
    let config = lab.file("g.yaml");
    std::fs::write(&config, text("hold_time: 90s")).unwrap();
    let at = config.to_str().unwrap();
    // Another speaker has the port.
    let other = g.spawn(bird(64513, &[Neighbor::new(l.v4, 64512)]));
    let (code, said) = doctor(&g, at, "");
    assert_eq!((code, ids(&said)), (1, vec!["port-taken".to_owned()]), "{said:#}");
    assert!(said["findings"][0]["what"].as_str().unwrap().starts_with("bird (process"), "{said:#}");
    assert_eq!(said["daemon_asked"], false);
    other.kill();
    until("the port is free", secs(10), || doctor(&g, at, "").0 == 0);
    // A peer that keeps the routes of the dead, and takes long to notice.
    l.spawn(bird_raw(
        "router id 192.0.2.1;\nprotocol device {}\nprotocol bgp g { local 192.0.2.1 as 64512; neighbor 192.0.2.11 as 64513; \
         hold time 240; graceful restart yes; ipv4 { import all; export none; }; }\n",
    ));
    g.spawn(standfast(&text("hold_time: 90s\n  graceful_restart: true")));
    let found = || ids(&doctor(&g, at, "").1);
    until("both are found", secs(20), || found() == ["graceful-restart", "hold-time"]);
    assert_eq!(doctor(&g, at, "").1["daemon_asked"], true);
}

#[test]
fn a_user_without_rights_and_a_broken_file_are_told_what_is_missing() {
    let Some(lab) = lab!() else { return };
    let g = lab.host("g", 11);
    sound(&g, false);
    let config = lab.file("g.yaml");
    let ping = "check: { type: ping, interval: 1s, timeout: 500ms, ping: { dst_ip: 192.0.2.1 } }";
    let text = Announcer::new(&g, 64513)
        .neighbor([192, 0, 2, 1], 64512, "auth_password: k")
        .vip_with("web", &["198.51.100.10/32"], ping, "address: { manage: true, interface: lo }")
        .yaml();
    std::fs::write(&config, text).unwrap();
    let at = config.to_str().unwrap();
    assert_eq!(doctor(&g, at, "").0, 0);
    g.run("sysctl -qw net.ipv4.ping_group_range='1 0'");
    let bin = standfast_bin().unwrap();
    let command = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all {} doctor -c {at}",
        bin.display()
    );
    let said = g.attempt(&command);
    for part in [
        "CAP_NET_ADMIN: managed addresses, TCP MD5 keys",
        "CAP_NET_BIND_SERVICE: listening on",
        "CAP_NET_RAW",
        "3 faults",
    ] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
    std::fs::write(&config, "schema: v1\nvip: []\n").unwrap();
    let said = g.attempt(&format!("{} doctor -c {at}; echo code $?", bin.display()));
    assert!(said.contains("code 2") && said.contains("vips"), "{said}");
}
