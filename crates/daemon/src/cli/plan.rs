//! What `standfast plan` shows: two plans as tables of named things, and the changes between them.
//!
//! The changes are those of [`table::diff`], which a reload applies. Secrets are shown only as given or changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_core::announce;
use standfast_core::plan::{
    Accept, Attributes, Bfd, BfdAuth, Bgp, Check, Damping, DnsProbe, DnsTransport, DnsWant, Drain,
    DrainUntil, Expect, FailAction, Floor, Followed, GrpcCall, Hashing, HttpVersion, Listener, ListenerFloor,
    ListenerVip, MembersProbe, OnStop, Peer, PeerAsn, Plan, Probe, ProcessProbe, Public, Router, Secret,
    Timers, TlsOptions, Ttl, Vip, Weights,
};
use standfast_core::prefix::Prefix;
use standfast_core::table::{self, Change};

use crate::config::{Daemon, show};

/// A thing of the plan: what it is, and its name if there are several.
type Key = (u8, &'static str, String);

/// What a thing is like, key by key.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fields(Vec<(&'static str, Field)>);

/// A value as it is shown, and what decides whether it changed: secrets are compared, never shown.
#[derive(Debug, Clone)]
struct Field {
    shown: String,
    secret: Option<Secret>,
}

impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.shown == other.shown && self.secret == other.secret
    }
}

/// One thing that is added, changed or removed.
pub(super) struct Difference {
    what: String,
    old: Option<Fields>,
    new: Option<Fields>,
}

/// The changes from `old`, or from nothing, to `new`.
pub(super) fn changes(old: Option<(&Plan, &Daemon)>, new: (&Plan, &Daemon)) -> Vec<Difference> {
    let old = old.map_or_else(BTreeMap::new, table);
    let new = table(new);
    table::diff(&old, &new)
        .into_iter()
        .map(|change| {
            let key = change.key().clone();
            let what = if key.2.is_empty() { key.1.to_owned() } else { format!("{} {}", key.1, key.2) };
            let after = match change {
                Change::Set(_, fields) => Some(fields),
                Change::Remove(_) => None,
            };
            Difference { what, old: old.get(&key).cloned(), new: after }
        })
        .collect()
}

/// The changes for a reader: `+` added, `~` changed, `-` removed.
pub(super) fn text(changes: &[Difference]) -> String {
    let mut out = String::new();
    for change in changes {
        // Writing to a String never fails.
        let _ = writeln!(out, "{}", change.title());
        for (name, old, new) in change.fields() {
            let _ = match (old, new) {
                (Some(old), Some(new)) if old.shown == new.shown => {
                    writeln!(out, "    {name}: {} (changed)", new.shown)
                }
                (Some(old), Some(new)) => writeln!(out, "    {name}: {} -> {}", old.shown, new.shown),
                (None, Some(new)) => writeln!(out, "    {name}: {}", new.shown),
                (Some(_), None) | (None, None) => Ok(()),
            };
        }
    }
    let _ = match changes {
        [] => writeln!(out, "nothing changes"),
        _ => writeln!(out, "{}", summary(changes)),
    };
    out
}

/// How many of them are there.
pub(super) fn summary(changes: &[Difference]) -> String {
    let of = |mark| changes.iter().filter(|change| change.mark() == mark).count();
    format!("{} added, {} changed, {} removed", of('+'), of('~'), of('-'))
}

/// The changes for a program.
pub(super) fn json(changes: &[Difference]) -> Value {
    let list: Vec<Value> = changes
        .iter()
        .map(|change| {
            let action = match (&change.old, &change.new) {
                (None, _) => "add",
                (Some(_), Some(_)) => "change",
                (Some(_), None) => "remove",
            };
            let fields: serde_json::Map<String, Value> = change
                .fields()
                .into_iter()
                .map(|(name, old, new)| {
                    (name.to_owned(), json!({ "old": old.map(|f| &f.shown), "new": new.map(|f| &f.shown) }))
                })
                .collect();
            json!({ "action": action, "what": change.what, "fields": fields })
        })
        .collect();
    json!({ "changes": list })
}

impl Difference {
    const fn mark(&self) -> char {
        match (&self.old, &self.new) {
            (None, _) => '+',
            (Some(_), Some(_)) => '~',
            (Some(_), None) => '-',
        }
    }

    fn title(&self) -> String {
        format!("{} {}", self.mark(), self.what)
    }

    /// It in one line: of one that changed, which of its fields.
    pub(super) fn line(&self) -> String {
        let names: Vec<&str> = self.fields().into_iter().map(|(name, ..)| name).collect();
        if self.mark() == '~' { format!("{}: {}", self.title(), names.join(", ")) } else { self.title() }
    }

    /// The fields that differ.
    fn fields(&self) -> Vec<(&'static str, Option<&Field>, Option<&Field>)> {
        let of = |fields: &'_ Option<Fields>, name: &str| -> Option<usize> {
            fields.as_ref()?.0.iter().position(|(n, _)| *n == name)
        };
        let mut names: Vec<&'static str> = Vec::new();
        for (name, _) in self.new.iter().chain(&self.old).flat_map(|f| &f.0) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let at = |fields: &'_ Option<Fields>, name: &str| of(fields, name);
        names
            .into_iter()
            .filter_map(|name| {
                let old = at(&self.old, name).and_then(|i| self.old.as_ref().map(|f| &f.0[i].1));
                let new = at(&self.new, name).and_then(|i| self.new.as_ref().map(|f| &f.0[i].1));
                (old != new).then_some((name, old, new))
            })
            .collect()
    }
}

/// Every thing of a configuration. Each is destructured whole, so that a new field cannot be forgotten.
fn table((plan, daemon): (&Plan, &Daemon)) -> BTreeMap<Key, Fields> {
    let Plan { router, bgp, vips, checks, listener } = plan;
    let mut table = BTreeMap::new();
    table.insert((0, "daemon", String::new()), self::daemon(daemon));
    table.insert((1, "router", String::new()), self::router(router, bgp));
    for (name, peer) in &bgp.peers {
        table.insert((2, "neighbour", name.clone()), self::peer(peer));
    }
    for (name, vip) in vips {
        table.insert((3, "vip", name.clone()), self::vip(vip));
    }
    for (id, check) in checks {
        table.insert((4, "check", id.to_string()), self::check(check));
    }
    if let Some(Listener { accept, vips, table: number, on_stop, hash_seed, drain_mark }) = listener {
        let on_stop = match on_stop {
            OnStop::Keep => "keep",
            OnStop::Remove => "remove",
        };
        let rows = Rows::default().put("table", number).put("on_stop", on_stop);
        let seed = hash_seed.map_or_else(|| "any".to_owned(), |s| s.to_string());
        let mark = drain_mark.map_or_else(|| "none".to_owned(), |mark| format!("{mark:#x}"));
        let rows = rows.put("hash_seed", seed).put("drain_mark", mark);
        table.insert((5, "listener", String::new()), rows.0);
        for range in accept {
            table.insert((6, "members", range.name.clone()), self::accept(range));
        }
        for (name, vip) in vips {
            table.insert((7, "listener vip", name.clone()), listener_vip(vip));
        }
    }
    table
}

/// The most octets that are shown of what is said to a server.
const WORD: usize = 8;

/// Collects the fields of one thing.
struct Rows(Fields);

impl Default for Rows {
    fn default() -> Self {
        Self(Fields(Vec::new()))
    }
}

impl Rows {
    fn put(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.0.push((name, Field { shown: value.to_string(), secret: None }));
        self
    }

    fn maybe(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.put(name, value),
            None => self,
        }
    }

    fn list(self, name: &'static str, values: impl IntoIterator<Item = impl ToString>) -> Self {
        let values: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
        if values.is_empty() { self } else { self.put(name, values.join(", ")) }
    }

    fn flag(self, name: &'static str, on: bool) -> Self {
        if on { self.put(name, true) } else { self }
    }

    fn secret(self, name: &'static str, secret: &Option<Secret>) -> Self {
        match secret {
            Some(secret) => self.partly(name, "(secret)", secret.reveal()),
            None => self,
        }
    }

    /// What is said to a server, if anything: its first word, since the rest can hold a password.
    fn octets(self, name: &'static str, octets: &[u8]) -> Self {
        if octets.is_empty() {
            return self;
        }
        let word = octets.iter().position(u8::is_ascii_whitespace).unwrap_or(octets.len()).min(WORD);
        let shown = match octets[word..].trim_ascii() {
            // The line break that ends it is shown too.
            [] => octets[..octets.len().min(2 * WORD)].escape_ascii().to_string(),
            _ => format!("{}... ({} octets)", octets[..word].escape_ascii(), octets.len()),
        };
        self.partly(name, shown, octets.escape_ascii().to_string())
    }

    /// A value of which only a part is shown, since the rest can hold a password.
    fn partly(mut self, name: &'static str, shown: impl Into<String>, whole: impl Into<String>) -> Self {
        self.0.0.push((name, Field { shown: shown.into(), secret: Some(Secret::new(whole.into())) }));
        self
    }
}

fn daemon(daemon: &Daemon) -> Fields {
    let Daemon { api, logging, state_dir } = daemon;
    let limit = |d: Option<Duration>| d.map_or("none".into(), show);
    Rows::default()
        .put("api", api.listen)
        .put("read_header_timeout", limit(api.read_header_timeout))
        .put("read_timeout", limit(api.read_timeout))
        .put("write_timeout", limit(api.write_timeout))
        .put("idle_timeout", limit(api.idle_timeout))
        .maybe(
            "api socket",
            api.socket.as_ref().map(|s| format!("{}, mode {:04o}", s.display(), api.socket_mode)),
        )
        .secret(
            "api tokens",
            &(!api.tokens.is_empty())
                .then(|| Secret::new(api.tokens.iter().map(Secret::reveal).collect::<Vec<_>>().join("\n"))),
        )
        .put("log_level", logging.level.to_string().to_lowercase())
        .put("log_format", if logging.json { "json" } else { "text" })
        .maybe("log_timestamps", logging.timestamps)
        .maybe("state_dir", state_dir.as_ref().map(|dir| dir.display()))
        .0
}

fn router(router: &Router, bgp: &Bgp) -> Fields {
    let Router { asn, router_id, local_address, local_address_ipv6 } = router;
    let Bgp { listen, peers: _ } = bgp;
    Rows::default()
        .put("asn", asn)
        .put("router_id", router_id)
        .maybe("local_address", *local_address)
        .maybe("local_address_ipv6", *local_address_ipv6)
        .list("listen", listen)
        .0
}

fn peer_asn(asn: PeerAsn) -> String {
    match asn {
        PeerAsn::Number(n) => n.to_string(),
        PeerAsn::External => "external".into(),
        PeerAsn::Internal => "internal".into(),
    }
}

fn ttl(ttl: Ttl) -> String {
    match ttl {
        Ttl::Direct => "direct".into(),
        Ttl::Multihop(n) => format!("multihop, TTL {n}"),
        Ttl::Security(n) => format!("at most {n} away (GTSM)"),
    }
}

fn bfd(rows: Rows, bfd: Option<&Bfd>) -> Rows {
    let Some(Bfd { interval, min_rx, multiplier, multihop, min_ttl, auth, strict, passive }) = bfd else {
        return rows;
    };
    let hops = match (multihop, min_ttl) {
        (false, _) => "single hop".to_owned(),
        (true, 1) => "multihop".to_owned(),
        (true, least) => format!("multihop, TTL {least} at least"),
    };
    let rows = rows
        .put("bfd", format!("{} x {multiplier}, receives each {}, {hops}", show(*interval), show(*min_rx)))
        .maybe("bfd strict", strict.map(|hold| format!("waits for {}", show(hold))))
        .flag("bfd passive", *passive);
    match auth {
        Some(BfdAuth { meticulous, key_id, key }) => {
            let kind = if *meticulous { "meticulous_sha1" } else { "sha1" };
            rows.partly(
                "bfd auth",
                format!("{kind}, key {key_id} (secret)"),
                format!("{kind} {key_id} {}", key.reveal()),
            )
        }
        None => rows,
    }
}

fn timers(rows: Rows, timers: &Timers) -> Rows {
    let Timers { hold, keepalive, connect_retry, connect_retry_max, send_hold } = timers;
    rows.put("hold_time", show(*hold))
        .maybe("keepalive_time", keepalive.map(show))
        .put("connect_retry", format!("{} to {}", show(*connect_retry), show(*connect_retry_max)))
        .put("send_hold_time", show(*send_hold))
}

fn peer(peer: &Peer) -> Fields {
    let Peer {
        name: _,
        address,
        interface,
        port,
        asn,
        local_address,
        local_port,
        passive,
        required,
        ttl: hops,
        password,
        timers: times,
        graceful_restart,
        extended_next_hop,
        bfd: liveness,
        vips,
    } = peer;
    let rows = Rows::default()
        .put("address", address)
        .maybe("interface", interface.as_ref())
        .put("port", port)
        .put("peer_asn", peer_asn(*asn))
        .maybe("local_address", *local_address)
        .maybe("local_port", *local_port)
        .flag("passive", *passive)
        .put("required", required)
        .put("hops", ttl(*hops))
        .secret("auth_password", password)
        .maybe("graceful_restart", graceful_restart.map(show))
        .flag("extended_next_hop", *extended_next_hop)
        .maybe("vips", vips.as_ref().map(|v| v.iter().cloned().collect::<Vec<_>>().join(", ")));
    bfd(timers(rows, times), liveness.as_ref()).0
}

fn attributes(attributes: &Attributes) -> String {
    let Attributes { as_path_prepend, communities, large_communities, extended_communities, med, local_pref } =
        attributes;
    let mut parts = Vec::new();
    if *as_path_prepend > 0 {
        parts.push(format!("prepend {as_path_prepend}"));
    }
    parts.extend(communities.iter().map(|c| format!("{}:{}", c >> 16, c & 0xffff)));
    parts.extend(large_communities.iter().map(|(a, b, c)| format!("{a}:{b}:{c}")));
    parts
        .extend(extended_communities.iter().map(|c| format!("0x{}", c.map(|b| format!("{b:02x}")).concat())));
    parts.extend(med.map(|m| format!("MED {m}")));
    parts.extend(local_pref.map(|l| format!("LOCAL_PREF {l}")));
    if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
}

fn vip(vip: &Vip) -> Fields {
    let Vip {
        name: _,
        prefixes,
        manage,
        require_local_address,
        local_interface,
        checks,
        policy,
        fail_action,
        withdraw_after,
        lower_priority_file,
        damping,
        drain,
        floor,
        announce,
        lower_priority,
    } = vip;
    Rows::default()
        .list("prefixes", prefixes.iter().map(Prefix::to_string))
        .maybe("address put on", manage.as_ref())
        .flag("require_local_address", *require_local_address)
        .maybe("local_interface", local_interface.as_ref())
        .list("shared checks", checks.values().filter(|id| id.is_shared()))
        .put("healthy when", policy)
        .put(
            "fail_action",
            match fail_action {
                FailAction::Withdraw => "withdraw",
                FailAction::LowerPriority => "lower_priority",
            },
        )
        .maybe("withdraw_after", withdraw_after.map(show))
        .maybe("lower_priority_file", lower_priority_file.as_ref().map(|p| p.display()))
        .maybe("damping", damping.as_ref().map(self::damping))
        .maybe("drain", (*drain != Drain::default()).then(|| self::drain(drain)))
        .maybe(
            "floor",
            floor.map(|Floor { members, settle }| format!("{members} stay; settle {}", show(settle))),
        )
        .put("announce with", attributes(announce))
        .put("lower_priority adds", attributes(lower_priority))
        .0
}

fn drain(drain: &Drain) -> String {
    let Drain { mode, until, floor, deadline, on_stop, on_file, persist } = drain;
    let mut text = announce::mode(*mode).to_owned();
    match until {
        DrainUntil::Connections => text += " until its connections are over",
        DrainUntil::Conntrack => text += " until the forwarded connections are over",
        DrainUntil::Deadline => {}
    }
    if *floor > 0 && *until != DrainUntil::Deadline {
        text += &format!(" but for {floor}");
    }
    text += &match until {
        DrainUntil::Deadline => format!(" for {}", show(*deadline)),
        _ => format!(", at most {}", show(*deadline)),
    };
    for (is, words) in [
        (*on_stop, "also before a stop"),
        (*on_file, "also by lower_priority_file"),
        (*persist, "outlives a restart"),
    ] {
        if is {
            text += &format!("; {words}");
        }
    }
    text
}

fn damping(damping: &Damping) -> String {
    let Damping { flaps, within, hold, max } = damping;
    format!("{flaps} flaps within {}: held for {}, at most {}", show(*within), show(*hold), show(*max))
}

fn tls(rows: Rows, tls: &Option<TlsOptions>) -> Rows {
    let Some(TlsOptions { insecure, ca_cert, client_cert, server_name, min_remaining }) = tls else {
        return rows;
    };
    rows.put("tls", server_name)
        .flag("tls_insecure", *insecure)
        .maybe("tls_ca_cert", ca_cert.as_ref().map(|p| p.display()))
        .maybe(
            "tls_client_cert",
            client_cert.as_ref().map(|(c, k)| format!("{}, {}", c.display(), k.display())),
        )
        .maybe("tls_min_remaining", Some(*min_remaining).filter(|d| !d.is_zero()).map(show))
}

fn pairs(rows: Rows, name: &'static str, pairs: &[(String, String)]) -> Rows {
    // A header can hold a token.
    let text = pairs.iter().map(|(n, v)| format!("{n}: {v}")).collect::<Vec<_>>().join("\n");
    rows.secret(name, &(!text.is_empty()).then(|| Secret::new(text)))
}

fn expect(expect: &Expect) -> String {
    match expect {
        Expect::Bytes(octets) => octets.escape_ascii().to_string(),
        Expect::Regex(regex) => format!("/{regex}/"),
    }
}

fn dns_rows(rows: Rows, dns: &DnsProbe) -> Rows {
    let DnsProbe { resolver, transport, names, query_type, recursion, udp_size, want } = dns;
    let DnsWant { rcode, authoritative, min_answers, answers, contain, regex } = want;
    let rows = rows.put("dns", resolver);
    let rows = match transport {
        DnsTransport::Udp => rows.put("transport", "udp").put("udp_size", udp_size),
        DnsTransport::Tcp => rows.put("transport", "tcp"),
        DnsTransport::Tls(options) => tls(rows.put("transport", "tls"), &Some(options.clone())),
    };
    let rows = rows
        .list("names", names)
        .put("query_type", query_type)
        .maybe("recursion", (!recursion).then_some("no"))
        .put("rcode", rcode)
        .flag("authoritative", *authoritative)
        .put("min_answers", min_answers);
    let rows = match answers {
        Some(all) if all.is_empty() => rows.put("answers", "none"),
        Some(all) => rows.list("answers", all),
        None => rows,
    };
    let rows = if contain.is_empty() { rows } else { rows.list("answers_contain", contain) };
    rows.maybe("answers_regex", regex.as_ref())
}

/// A command's program, and how much it is told.
fn command(argv: &[String]) -> String {
    match argv {
        [] => String::new(),
        [program] => program.clone(),
        [program, _] => format!("{program} (1 argument)"),
        [program, arguments @ ..] => format!("{program} ({} arguments)", arguments.len()),
    }
}

/// The names of variables; their values can hold a password.
fn environment(rows: Rows, env: &BTreeMap<String, String>) -> Rows {
    if env.is_empty() {
        return rows;
    }
    let names = env.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    rows.partly("env", names, env.values().map(String::as_str).collect::<Vec<_>>().join("\0"))
}

/// A proxy's scheme, and its host and port without credentials.
fn proxy_address(proxy: &Secret) -> (&str, &str) {
    let (scheme, rest) = proxy.reveal().split_once("://").unwrap_or(("http", proxy.reveal()));
    let authority = rest.split('/').next().unwrap_or_default();
    (scheme, authority.rsplit_once('@').map_or(authority, |(_, at)| at))
}

fn check(check: &Check) -> Fields {
    let Check { interval, timeout, rise, fall, fast_interval, slow, via, detailed_metrics, probe } = check;
    if let Probe::Members(MembersProbe { vip, at_least }) = probe {
        // Nothing of it runs.
        return Rows::default()
            .put("members of", vip)
            .put("at_least", at_least)
            .flag("detailed_metrics", *detailed_metrics)
            .0;
    }
    let rows = match probe {
        // Nothing runs.
        Probe::External => Rows::default().put("push", "reported from outside").put("lease", show(*interval)),
        _ => Rows::default().put("interval", show(*interval)).put("timeout", show(*timeout)),
    };
    let rows = rows
        .put("rise", rise)
        .put("fall", fall)
        .maybe("fast_interval", Some(*fast_interval).filter(|fast| fast != interval).map(show))
        .maybe("slow", slow.map(|slow| format!("{} x {}", show(slow.limit), slow.times)))
        .flag("detailed_metrics", *detailed_metrics)
        .maybe("source", via.source)
        .maybe("interface", via.interface.as_ref())
        .maybe("mark", via.mark)
        .maybe("proxy_protocol", via.proxy_protocol.map(|version| format!("{version:?}").to_lowercase()));
    match probe {
        Probe::Tcp(tcp) => tls(rows.put("tcp", &tcp.target), &tcp.tls)
            .octets("send", &tcp.send)
            .maybe("expect", tcp.expect.as_ref().map(expect))
            .flag("reset", tcp.reset),
        Probe::Exec(exec) => {
            environment(rows.partly("exec", command(&exec.argv), exec.argv.join("\0")), &exec.env)
                .put("directory", exec.directory.display())
                .maybe("user", exec.user.as_ref())
                .put("output_limit", exec.output_limit)
                .flag("nagios", exec.nagios)
        }
        Probe::Process(ProcessProbe { follows, name }) => match follows {
            Followed::PidFile(path) => rows.put("process of", path.display()),
            Followed::Unit(unit) => rows.put("process of", unit),
        }
        .maybe("name", name.as_ref()),
        Probe::Http(http) => {
            let version = match http.version {
                HttpVersion::Auto => None,
                HttpVersion::Http1 => Some("1.1"),
                HttpVersion::Http2 => Some("2"),
            };
            let scheme = if http.tls.is_some() { "https" } else { "http" };
            let (path, query) = http.path.split_once('?').map_or((&http.path[..], ""), |(p, _)| (p, "?..."));
            let shown = format!("{} {scheme}://{}{path}{query}", http.method, http.host);
            // Whoever checks through a proxy connects to that.
            let proxy = http.proxy.as_ref().map(|proxy| proxy_address(proxy).1.to_owned());
            let rows = rows
                .partly("http", shown, &http.path)
                .put("connects to", proxy.unwrap_or_else(|| http.target.to_string()))
                .list(
                    "response_codes",
                    http.status.iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }),
                )
                .maybe("response_text", http.text.as_ref())
                .maybe("response_regex", http.regex.as_ref())
                .maybe("response_jq", http.jq.as_ref())
                .list("response_headers", http.response_headers.iter().map(|(n, v)| format!("{n}: {v}")))
                .maybe("version", version)
                .maybe("follow_redirects", http.follow.as_ref().map(|f| f.limit))
                .flag("allow_downgrade", http.follow.as_ref().is_some_and(|f| f.downgrade))
                .secret("body", &http.body.clone().map(Secret::new));
            let rows = match &http.proxy {
                Some(proxy) => {
                    let (scheme, at) = proxy_address(proxy);
                    rows.partly("proxy", format!("{scheme}://{at}"), proxy.reveal())
                }
                None => rows,
            };
            let rows = rows
                .maybe("proxy_ca_cert", http.proxy_ca_cert.as_ref().map(|p| p.display()))
                .flag("keep_alive", http.keep_alive)
                .put("body_limit", http.body_limit);
            // Of a check without TLS, that of the https URLs that it may be led to.
            let upgraded = http.follow.as_ref().filter(|_| http.tls.is_none()).map(|f| f.tls.clone());
            pairs(tls(rows, &http.tls.clone().or(upgraded)), "headers", &http.headers)
        }
        Probe::Dns(dns) => dns_rows(rows, dns),
        Probe::Ping(ping) => rows
            .put("ping", ping.target)
            .maybe("src_ip", ping.source)
            .flag("privileged", ping.privileged)
            .put("count", ping.count)
            .put("packet interval", show(ping.interval))
            .put("packet timeout", show(ping.timeout))
            .put("max_loss_ratio", f64::from(ping.max_loss_permille) / 1000.0)
            .maybe("max_rtt", ping.max_rtt.map(show)),
        Probe::Udp(udp) => rows
            .put("udp", &udp.target)
            .octets("payload", &udp.payload)
            .maybe("expect", udp.expect.as_ref().map(expect))
            .put(
                "silence",
                udp.silence.map_or_else(|| "bad".into(), |wait| format!("good after {}", show(wait))),
            ),
        Probe::Grpc(grpc) => {
            let rows = rows.put("grpc", &grpc.target).put("authority", &grpc.authority);
            let rows = match &grpc.call {
                GrpcCall::Health { service } => {
                    rows.put("health of", if service.is_empty() { "the server" } else { service })
                }
                GrpcCall::Method(method) => rows
                    .put("method", &method.path)
                    // It can hold a password.
                    .secret("request", &method.request.clone().map(Secret::new))
                    .maybe("descriptor_set", method.descriptor_set.as_ref().map(|p| p.display()))
                    .list("ok_codes", &method.ok_codes)
                    .maybe("response_text", method.text.as_ref())
                    .maybe("response_regex", method.regex.as_ref())
                    .maybe("response_jq", method.jq.as_ref()),
            };
            pairs(tls(rows, &grpc.tls), "metadata", &grpc.metadata).flag("keep_alive", grpc.keep_alive)
        }
        // Told above.
        Probe::External | Probe::Members(_) => rows,
    }
    .0
}

fn buckets(named: Option<u16>) -> String {
    named.map_or_else(|| format!("{}, or as they are", Hashing::BUCKETS), |n| n.to_string())
}

fn listener_vip(vip: &ListenerVip) -> Fields {
    let ListenerVip { prefix, hashing, weights, floor, public, drain } = vip;
    let rows = Rows::default().put("prefix", prefix);
    let rows = match hashing {
        Hashing::Resilient { buckets, idle_timer, unbalanced_timer } => rows
            .put("hashing", "resilient")
            .put("buckets", self::buckets(*buckets))
            .put("idle_timer", show(*idle_timer))
            .maybe("unbalanced_timer", Some(*unbalanced_timer).filter(|d| !d.is_zero()).map(show)),
        Hashing::Consistent { slots } => rows.put("hashing", "consistent").put("slots", slots),
        Hashing::Plain => rows.put("hashing", "plain"),
    };
    rows.put(
        "weights",
        match weights {
            Weights::Equal => "equal",
            Weights::LinkBandwidth => "link_bandwidth",
        },
    )
    .put("drain_timeout", show(*drain))
    .maybe("floor", floor.map(|ListenerFloor { members, hold }| format!("{members} held for {}", show(hold))))
    .maybe("public", public.as_ref().map(self::public))
    .0
}

fn public(public: &Public) -> String {
    let Public { address, ports } = public;
    match &ports[..] {
        [] => format!("{address}, every port"),
        [port] => format!("{address}, port {port}"),
        ports => {
            let list: Vec<String> = ports.iter().map(u16::to_string).collect();
            format!("{address}, ports {}", list.join(", "))
        }
    }
}

fn accept(accept: &Accept) -> Fields {
    let Accept {
        name: _,
        range,
        interface,
        asn,
        password,
        vips,
        max_members,
        max_opening,
        open_timeout,
        min_hold,
        extended_next_hop,
        ttl: hops,
        timers: times,
        bfd: liveness,
        reflect,
    } = accept;
    let rows = Rows::default()
        .put("range", range)
        .maybe("interface", interface.as_ref())
        .put("peer_asn", peer_asn(*asn))
        .secret("auth_password", password)
        .list("vips", vips.iter().flatten())
        .put("max_members", max_members)
        .put("max_opening", max_opening)
        .put("open_timeout", show(*open_timeout))
        .flag("extended_next_hop", *extended_next_hop)
        .put("min_hold_time", show(*min_hold))
        .put("hops", ttl(*hops))
        .flag("reflect", *reflect);
    bfd(timers(rows, times), liveness.as_ref()).0
}
