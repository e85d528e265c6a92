//! What an operator reads of a VIP and its checks: reasons that are true at that moment, and the way out of a damping.

use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const OTHER: &str = "198.51.100.11/32";
const G: u32 = 64513;

fn vip(scene: &Scene, name: &str) -> Value {
    let (_, body) = scene.g.get(API, "/status").unwrap_or_default();
    let status: Value = serde_json::from_str(&body).unwrap_or_default();
    let vips = status["vips"].as_array().cloned().unwrap_or_default();
    vips.into_iter().find(|vip| vip["name"] == name).unwrap_or_default()
}

fn reason(scene: &Scene, name: &str) -> String {
    vip(scene, name)["reason"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn reads(scene: &Scene, name: &str, words: &str) {
    let mut last = String::new();
    until(&format!("the reason of {name} is {words:?}"), secs(20), || {
        let now = reason(scene, name);
        if now != last {
            println!("{name}: {now}");
            last.clone_from(&now);
        }
        now.contains(words)
    });
}

/// Runs the command line in the daemon's host: its exit code, and what it said.
fn standfast(scene: &Scene, args: &str) -> (i32, String) {
    let bin = standfast_bin().expect("the lab needs it");
    let text = scene.g.attempt(&format!("{} {args} 2>&1; echo \" code $?\"", bin.display()));
    let (said, code) = text.split_once(" code ").expect("a code");
    (code.lines().next().and_then(|code| code.trim().parse().ok()).expect("a code"), said.to_owned())
}

/// A check of a path of the service, with rise and fall 2.
fn path(name: &str) -> String {
    format!(
        "{{ name: {name}, type: http, interval: 200ms, timeout: 190ms, rise: 2, fall: 2, \
         http: {{ host: 127.0.0.1, port: 80, url: /{name} }} }}"
    )
}

#[test]
fn the_reason_of_a_vip_is_true_whenever_it_is_read() {
    let Some(lab) = lab!("standfast") else { return };
    let file = lab.file("drain");
    let checks = format!(
        "checks: [{}, {}, {{ name: app, type: push, push: {{ lease: 1h }} }}]\n    checks_policy: \"(a || b) && app\"",
        path("a"),
        path("b")
    );
    let scene = Scene::new(&lab, G, |config| config.vip_with("web", &[VIP], &checks, &policy(&file)));
    reads(&scene, "web", "initial: not decided yet: app");
    let (code, _) = standfast(&scene, &format!("report web --ok --api {API}"));
    assert_eq!(code, 0);
    reads(&scene, "web", "app: rise threshold reached");
    scene.service.set("/a", false);
    scene.service.set("/b", false);
    reads(&scene, "web", "status 503");
    let words = reason(&scene, "web");
    assert!(words.contains("fall threshold reached") && words.contains("(and "), "{words}");
    // One that is good again is blamed no longer.
    scene.service.set("/b", true);
    reads(&scene, "web", "b: rise threshold reached");
    let since = vip(&scene, "web")["checks"][0]["since"].as_f64().expect("seconds");
    assert!((0.0..120.0).contains(&since), "{since}");
    // The one that brought it back fails, and another holds the VIP.
    scene.service.set("/a", true);
    until("a is healthy", secs(10), || vip(&scene, "web")["checks"][0]["health_name"] == "healthy");
    scene.service.set("/b", false);
    reads(&scene, "web", "healthy: a, app");
    assert_eq!(vip(&scene, "web")["state_name"], "announced");
    std::fs::write(&file, "").expect("a file");
    reads(&scene, "web", "lower_priority_file exists: /");
    std::fs::remove_file(&file).expect("a file");
    reads(&scene, "web", "healthy, and lower_priority_file is gone");
}

#[test]
fn a_managed_address_on_an_interface_that_is_not_there_says_so() {
    let Some(lab) = lab!("standfast") else { return };
    // The check asks the VIP itself, and finds nobody.
    let check = "check: { type: tcp, interval: 200ms, timeout: 190ms, rise: 1, fall: 1, tcp: { port: 8080 } }\n    \
                 address: { manage: true, interface: vx9 }";
    let scene = Scene::new(&lab, G, |config| config.vip_with("web", &[VIP], check, WITHDRAW));
    let words =
        "address 198.51.100.10 is being added: cannot add 198.51.100.10 to vx9: there is no interface vx9";
    reads(&scene, "web", words);
    reads(&scene, "web", "tcp: fall threshold reached: connect 198.51.100.10:8080: ");
    assert!(reason(&scene, "web").starts_with(words), "what it fails for comes first");
    let _service = Service::start(&scene.g, (std::net::Ipv4Addr::UNSPECIFIED, 8080));
    scene.g.run("ip link add vx9 type veth peer name vx9p; ip link set vx9 up");
    reads(&scene, "web", "tcp: rise threshold reached");
}

#[test]
fn a_vip_that_is_held_is_let_go_by_who_may() {
    let Some(lab) = lab!("standfast") else { return };
    let socket = lab.file("api.sock");
    let damped = "policy: { fail_action: withdraw, damping: { flaps: 1, within: 10m, hold: 10m } }";
    let api = format!("listen: \"{API}\", socket: {}, tokens: [s3cret-token]", socket.display());
    let scene = Scene::new(&lab, G, |config| {
        config.vip("web", &[VIP], "/", damped).vip("plain", &[OTHER], "/", WITHDRAW).api(&api)
    });
    reads(&scene, "web", "http: rise threshold reached");
    scene.service.set("/", false);
    reads(&scene, "web", "http: fall threshold reached");
    scene.service.set("/", true);
    reads(&scene, "web", "damped: 1 flap in 0 s, held for ");
    // Over TCP it needs the token, as a report does.
    let undamp = |more: &str| standfast(&scene, &format!("undamp {more}"));
    let (code, text) = undamp(&format!("web --api {API}"));
    assert!(code == 2 && text.contains("needs one of api.tokens"), "{code} {text}");
    assert_eq!(scene.state_of("web"), "withdrawn");
    let (code, text) = undamp(&format!("plain --api unix:{}", socket.display()));
    assert!(code == 2 && text.contains("VIP plain has no damping"), "{code} {text}");
    let (code, text) = undamp(&format!("nix --api unix:{}", socket.display()));
    assert!(
        code == 2 && text.contains("VIP not found: nix") && text.contains("there is: plain, web"),
        "{code} {text}"
    );
    let config = scene.daemon.config();
    let (code, text) = undamp(&format!("web -c {}", config.display()));
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with("web was held for ")
            && text.contains("it is announced: healthy, and no longer damped"),
        "{text}"
    );
    let (code, text) = undamp(&format!("web -c {}", config.display()));
    assert!(code == 0 && text.starts_with("web was not held"), "{code} {text}");
    assert_eq!(scene.state_of("web"), "announced");
    assert!(scene.daemon.log().contains("has its failures forgotten"), "the log does not say who did it");
}
