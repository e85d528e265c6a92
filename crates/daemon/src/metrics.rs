//! Metrics, in Prometheus' text format or OpenMetrics: pathosd's names and labels, and standfast's own beside them.
//!
//! Nothing is counted here. Gates and records count where verdicts pass anyway; a scrape copies the numbers out of the node
//! in one question, and the text is made elsewhere. Each check has its series once: one that VIPs share has an empty `vip`.

mod bfd;
mod listener;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use standfast_core::announce::VipState;
use standfast_core::bgp::State;
use standfast_core::health::{Details, Health, Outcome, Runs};
use standfast_core::machine::Time;
use standfast_core::node::{ListenerStatus, Node, PeerStatus};
use standfast_core::plan::{CheckId, Plan};
use standfast_core::prefix::{Afi, Prefix};
use standfast_io::probe::RunCounts;

use crate::checks::{BUCKETS, Checks, Record, is_insecure, kind};

/// Checks whose numbers are copied in one question.
pub const SLICE: usize = 500;

/// What a scrape copies out of the node.
#[derive(Debug)]
pub struct Seen {
    /// What ran then: the order of everything else.
    pub plan: Arc<Plan>,
    vips: Vec<Option<Vip>>,
    checks: Vec<Option<Check>>,
    peers: Vec<PeerStatus>,
    /// Its VIPs are added to it in parts, too.
    pub listener: Option<ListenerStatus>,
    kernel_pending: u32,
    bfd: bfd::Seen,
}

#[derive(Debug)]
struct Vip {
    state: VipState,
    health: Health,
    since: Time,
    transitions: u64,
    entered: [u64; 3],
    prepend: Option<u8>,
    lacks_address: bool,
    damped: Duration,
    /// Whether it drains or is drained, the connections at the last count, and the time that is left.
    drain: Option<(bool, Option<u64>, Duration)>,
}

/// The numbers of a check.
#[derive(Debug)]
pub struct Check {
    health: Health,
    runs: Runs,
    last: Option<Outcome>,
}

impl Seen {
    /// The numbers of the host and of its VIPs, in the plan's order. Those of the checks are [added](Self::add) to it, and the
    /// listener's VIPs to its [`listener`](Self::listener).
    pub fn of(node: &Node, now: Time) -> Self {
        let plan = Arc::clone(node.plan());
        let vip = |name: &String| {
            let (view, attributes) = node.vip_view(name)?;
            Some(Vip {
                state: view.state,
                health: view.health,
                since: view.since,
                transitions: view.transitions,
                entered: view.entered,
                prepend: attributes.map(|a| a.as_path_prepend),
                lacks_address: view.lacks_address(),
                damped: view.held(now).map_or(Duration::ZERO, |held| held.until.since(now)),
                drain: view.drain.as_ref().map(|d| (d.goes_on(), d.left(), d.until.since(now))),
            })
        };
        let vips = plan.vips.keys().map(vip).collect();
        Self {
            plan,
            vips,
            checks: Vec::new(),
            peers: node.peers_status(now),
            listener: node.listener_head(now),
            kernel_pending: node.kernel_pending(),
            bfd: bfd::Seen::of(node, now),
        }
    }

    /// The numbers of the `n`th slice of the checks, each of [`SLICE`] at most: no question may keep the node for long.
    pub fn slice(node: &Node, plan: &Plan, n: usize) -> Vec<Option<Check>> {
        let check = |id: &CheckId| {
            let gate = node.gate(id)?;
            let last = gate.last().map(|(_, verdict)| verdict.outcome);
            Some(Check { health: gate.health(), runs: *gate.runs(), last })
        };
        plan.checks.keys().skip(n * SLICE).take(SLICE).map(check).collect()
    }

    /// Adds the next slice.
    pub fn add(&mut self, slice: Vec<Option<Check>>) {
        self.checks.extend(slice);
    }
}

/// The content type of what [`render`] makes.
pub const fn content_type(open: bool) -> &'static str {
    if open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        prometheus_text::CONTENT_TYPE
    }
}

/// The whole text, or the families of these names alone if there are any: those of ten thousand checks are many megabytes.
/// `started` is the moment that the node's clock counts from; `open`: in OpenMetrics.
pub fn render(seen: Seen, checks: &Checks, started: SystemTime, open: bool, names: Vec<String>) -> String {
    let counts = checks.counts();
    let records = seen.plan.checks.iter().map(|(id, plan)| {
        if plan.detailed_metrics { checks.record(id) } else { checks.tally(id) }.unwrap_or_default()
    });
    let records = records.collect();
    let mut registry = Registry::default();
    let scrape = Scrape { seen, counts, records, started, names };
    registry.register_collector(Box::new(scrape));
    let mut out = String::new();
    let made =
        if open { text::encode(&mut out, &registry) } else { prometheus_text::encode(&mut out, &registry) };
    if made.is_err() {
        tracing::error!("metrics could not be written");
    }
    out
}

/// Everything that one answer is made of.
struct Scrape {
    seen: Seen,
    counts: BTreeMap<CheckId, RunCounts>,
    records: Vec<Record>,
    started: SystemTime,
    names: Vec<String>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

/// Names and values.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Where families go.
struct Page<'a, 'b> {
    out: &'a mut DescriptorEncoder<'b>,
    /// The only ones that are wanted, if any are named; with or without what is appended to them.
    names: &'a [String],
}

impl Page<'_, '_> {
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<Family<'s>, fmt::Error> {
        let is_this = |wanted: &String| {
            let rest = wanted.strip_prefix(name);
            rest.is_some_and(|rest| matches!(rest, "" | "_total" | "_bucket" | "_sum" | "_count"))
        };
        if !self.names.is_empty() && !self.names.iter().any(is_this) {
            return Ok(Family(None));
        }
        self.out.encode_descriptor(name, help, None, kind).map(|family| Family(Some(family)))
    }
}

/// A family while its samples are written; `None` if nobody wants it.
struct Family<'a>(Option<MetricEncoder<'a>>);

impl Family<'_> {
    fn gauge(&mut self, labels: &Labels<'_>, value: impl EncodeGaugeValue) -> fmt::Result {
        let Some(family) = &mut self.0 else { return Ok(()) };
        family.encode_family(labels)?.encode_gauge(&value)
    }

    fn counter(&mut self, labels: &Labels<'_>, value: u64) -> fmt::Result {
        let Some(family) = &mut self.0 else { return Ok(()) };
        family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn histogram(&mut self, labels: &Labels<'_>, record: &Record) -> fmt::Result {
        let Some(family) = &mut self.0 else { return Ok(()) };
        let bounds = BUCKETS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(record.took).collect();
        let none: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
        let count = record.took.iter().sum();
        family.encode_family(labels)?.encode_histogram(record.sum.as_secs_f64(), count, &buckets, none)
    }
}

fn gauge<'a>(out: &'a mut Page<'_, '_>, name: &'a str, help: &str) -> Result<Family<'a>, fmt::Error> {
    out.family(name, help, MetricType::Gauge)
}

/// `name` without its `_total`.
fn counter<'a>(out: &'a mut Page<'_, '_>, name: &'a str, help: &str) -> Result<Family<'a>, fmt::Error> {
    out.family(name, help, MetricType::Counter)
}

impl Collector for Scrape {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut Page { out: &mut out, names: &self.names };
        gauge(out, "pathosd_build_info", "The version that runs")?
            .gauge(&vec![("version", env!("CARGO_PKG_VERSION")), ("program", "standfast")], 1u32)?;
        self.vips(out)?;
        self.routes(out)?;
        self.seen.bfd.encode(out)?;
        self.checks(out)?;
        self.detailed(out)?;
        self.seen.listener.as_ref().map_or(Ok(()), |seen| listener::listener(seen, out))?;
        process(out, self.started)
    }
}

impl Scrape {
    fn plan(&self) -> &Plan {
        &self.seen.plan
    }

    fn vips(&self, out: &mut Page<'_, '_>) -> fmt::Result {
        // A series for each prefix, as they are told one by one.
        let mut named = Vec::new();
        for (plan, vip) in self.plan().vips.values().zip(&self.seen.vips) {
            let Some(vip) = vip else { continue };
            named.extend(plan.prefixes.iter().map(|prefix| (plan.name.as_str(), prefix.to_string(), vip)));
        }
        let all =
            || named.iter().map(|(name, nlri, vip)| (vec![("vip", *name), ("nlri", nlri.as_str())], *vip));
        let mut family = gauge(out, "pathosd_vip_state", "0 withdrawn, 1 announced, 2 pessimized")?;
        for (labels, vip) in all() {
            family.gauge(&labels, vip.state as u32)?;
        }
        let mut family =
            counter(out, "pathosd_vip_transitions", "State changes of a VIP, by the state entered")?;
        for (labels, vip) in all() {
            for (to, count) in ["withdrawn", "announced", "pessimized"].into_iter().zip(vip.entered) {
                family.counter(&with(&labels, "to", to), count)?;
            }
        }
        let mut family = gauge(
            out,
            "pathosd_vip_last_transition_timestamp",
            "When a VIP last changed its state, in seconds since 1970",
        )?;
        for (labels, vip) in all().filter(|(_, vip)| vip.transitions > 0) {
            let at = self.started + vip.since.since(Time::BEGIN);
            family.gauge(&labels, at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())?;
        }
        let mut family = gauge(
            out,
            "pathosd_vip_priority_status",
            "How often the AS is prepended: 0 is full priority; absent while withdrawn",
        )?;
        for (labels, vip) in all() {
            if let Some(prepend) = vip.prepend {
                family.gauge(&labels, u32::from(prepend))?;
            }
        }
        let mut family = gauge(out, "standfast_vip_health", "0 unknown, 1 healthy, 2 unhealthy")?;
        for (labels, vip) in all() {
            family.gauge(&labels, vip.health as u32)?;
        }
        let mut family = gauge(
            out,
            "standfast_vip_damped_seconds",
            "For how long its damping still holds a VIP back; only where it has one",
        )?;
        for (plan, vip) in self.plan().vips.values().zip(&self.seen.vips) {
            if let Some(vip) = vip.as_ref().filter(|_| plan.damping.is_some()) {
                family.gauge(&vec![("vip", plan.name.as_str())], vip.damped.as_secs_f64())?;
            }
        }
        self.drains(out)?;
        let mut family = gauge(
            out,
            "pathosd_vip_local_address_assigned",
            "Whether every address that a VIP requires is on this host; only for require_local_address",
        )?;
        for (plan, vip) in self.plan().vips.values().zip(&self.seen.vips) {
            if let Some(vip) = vip.as_ref().filter(|_| plan.require_local_address) {
                family.gauge(&vec![("vip", plan.name.as_str())], u32::from(!vip.lacks_address))?;
            }
        }
        Ok(())
    }

    fn drains(&self, out: &mut Page<'_, '_>) -> fmt::Result {
        let seen = self.plan().vips.values().zip(&self.seen.vips);
        let vips: Vec<_> = seen
            .filter_map(|(plan, vip)| Some((vec![("vip", plan.name.as_str())], vip.as_ref()?.drain)))
            .collect();
        let mut family = gauge(out, "standfast_vip_drain", "0 not drained, 1 draining, 2 drained")?;
        for (labels, drain) in &vips {
            family.gauge(labels, drain.map_or(0u32, |(goes_on, ..)| if goes_on { 1 } else { 2 }))?;
        }
        let goes_on =
            || vips.iter().filter_map(|(labels, d)| Some((labels, d.filter(|(goes_on, ..)| *goes_on)?)));
        let mut family = gauge(
            out,
            "standfast_vip_drain_connections",
            "Connections of a VIP that drains, at the last count",
        )?;
        for (labels, (_, connections, _)) in goes_on() {
            if let Some(n) = connections {
                family.gauge(labels, n as f64)?;
            }
        }
        let mut family = gauge(
            out,
            "standfast_vip_drain_left_seconds",
            "Seconds until the drain of a VIP is over at the latest",
        )?;
        for (labels, (_, _, left)) in goes_on() {
            family.gauge(labels, left.as_secs_f64())?;
        }
        Ok(())
    }

    fn routes(&self, out: &mut Page<'_, '_>) -> fmt::Result {
        let peers: Vec<_> =
            self.seen.peers.iter().map(|p| (p, p.address.to_string(), p.peer_asn.to_string())).collect();
        let mut family = gauge(
            out,
            "pathosd_route_state",
            "Whether a peer was told a route and has not been told otherwise",
        )?;
        for (peer, address, asn) in &peers {
            let all = |name: &str| {
                self.plan()
                    .bgp
                    .peers
                    .get(&peer.name)
                    .is_some_and(|p| p.vips.as_ref().is_none_or(|v| v.contains(name)))
            };
            for vip in self.plan().vips.values().filter(|vip| all(&vip.name)) {
                for prefix in &vip.prefixes {
                    let nlri = prefix.to_string();
                    let family_name = match prefix.afi() {
                        Afi::Ipv4 => "ipv4_unicast",
                        Afi::Ipv6 => "ipv6_unicast",
                    };
                    let labels = vec![
                        ("vip", vip.name.as_str()),
                        ("nlri", nlri.as_str()),
                        ("peer", peer.name.as_str()),
                        ("peer_ip", address.as_str()),
                        ("peer_asn", asn.as_str()),
                        ("family", family_name),
                    ];
                    // Sorted, as a session keeps it.
                    family.gauge(&labels, u32::from(peer.told.binary_search(prefix).is_ok()))?;
                }
            }
        }
        let label = |(peer, address, asn): &'_ (&PeerStatus, String, String)| {
            [peer.name.clone(), address.clone(), asn.clone()]
        };
        let named: Vec<_> = peers.iter().map(label).zip(&self.seen.peers).collect();
        let all = || {
            named.iter().map(|([name, address, asn], peer)| {
                let labels: Labels<'_> =
                    vec![("peer", name.as_str()), ("peer_ip", address.as_str()), ("peer_asn", asn.as_str())];
                (labels, *peer)
            })
        };
        let mut family =
            gauge(out, "standfast_peer_established", "Whether the BGP session with a peer is up")?;
        for (labels, peer) in all() {
            family.gauge(&labels, u32::from(peer.session_state == State::Established))?;
        }
        let mut family =
            gauge(out, "standfast_peer_pending", "Whether a peer has not been told everything yet")?;
        for (labels, peer) in all() {
            family.gauge(&labels, u32::from(peer.pending))?;
        }
        let mut family = counter(out, "standfast_peer_updates_sent", "UPDATE messages sent to a peer")?;
        for (labels, peer) in all() {
            family.counter(&labels, peer.updates_sent)?;
        }
        let mut family =
            counter(out, "standfast_peer_updates_received", "UPDATE messages received from a peer")?;
        for (labels, peer) in all() {
            family.counter(&labels, peer.updates_received)?;
        }
        let help = "Addresses, routes and sockets that the kernel has not taken as they should be";
        gauge(out, "standfast_kernel_pending", help)?.gauge(&Vec::new(), self.seen.kernel_pending)
    }

    fn checks(&self, out: &mut Page<'_, '_>) -> fmt::Result {
        let plans = self.plan().checks.iter();
        let nlri: Vec<String> = plans.clone().map(|(id, _)| first_prefix(self.plan(), id)).collect();
        let mut all = Vec::with_capacity(nlri.len());
        for ((((id, plan), nlri), seen), record) in plans.zip(&nlri).zip(&self.seen.checks).zip(&self.records)
        {
            let labels: Labels<'_> = vec![
                ("vip", &*id.vip),
                ("nlri", nlri.as_str()),
                ("check", &*id.check),
                ("type", kind(&plan.probe)),
            ];
            if let Some(seen) = seen {
                all.push((id, plan, labels, seen, record));
            }
        }
        let mut family = counter(out, "pathosd_check", "Runs of a check, by how they came out")?;
        for (_, _, labels, Check { runs, .. }, _) in &all {
            for (result, count) in [("success", runs.good), ("fail", runs.bad), ("no_result", runs.no_result)]
            {
                family.counter(&with(labels, "result", result), count)?;
            }
        }
        let mut counts = |name: &str, help: &str, of: fn(&Runs) -> u64| {
            let mut family = counter(out, name, help)?;
            all.iter().try_for_each(|(_, _, labels, seen, _)| family.counter(labels, of(&seen.runs)))
        };
        counts(
            "pathosd_check_rise_fall_absorbed",
            "Runs that contradicted a check's health and were not enough to change it",
            |runs| runs.absorbed,
        )?;
        counts("pathosd_check_timeout_exceeded", "Runs that ended because their time was up", |runs| {
            runs.timed_out
        })?;
        counts("standfast_check_slow", "Good runs that took longer than the check's slow limit", |runs| {
            runs.slow
        })?;
        counts("standfast_check_silent", "Times that silence counted as a bad verdict", |runs| runs.silent)?;
        let mut family = gauge(out, "pathosd_check_last_result", "Whether the last run was good")?;
        for (_, _, labels, seen, _) in &all {
            if let Some(last) = seen.last {
                family.gauge(labels, u32::from(last == Outcome::Good))?;
            }
        }
        let mut family = gauge(out, "standfast_check_health", "0 unknown, 1 healthy, 2 unhealthy")?;
        for (_, _, labels, seen, _) in &all {
            family.gauge(labels, seen.health as u32)?;
        }
        let mut family = gauge(out, "standfast_check_insecure", "1 for a check that takes any certificate")?;
        for (_, _, labels, ..) in all.iter().filter(|(_, plan, ..)| is_insecure(&plan.probe)) {
            family.gauge(labels, 1u32)?;
        }
        let mut counts = |name: &str, help: &str, of: fn(&RunCounts) -> u64| {
            let mut family = counter(out, name, help)?;
            let mut counted =
                all.iter().filter_map(|(id, _, labels, ..)| Some((labels, self.counts.get(*id)?)));
            counted.try_for_each(|(labels, counts)| family.counter(labels, of(counts)))
        };
        counts("standfast_check_overruns", "Moments at which a run was due and did not start", |c| {
            c.overruns
        })?;
        counts("standfast_check_late", "Runs that started more than 10 ms after their moment", |c| c.late)?;
        let mut family = out.family(
            "pathosd_check_duration_seconds",
            "How long runs took, those without a result left out",
            MetricType::Histogram,
        )?;
        for (id, _, labels, _, record) in &all {
            if self.counts.contains_key(*id) {
                family.histogram(labels, record)?;
            }
        }
        Ok(())
    }

    /// What the last runs of the checks with `detailed_metrics` saw.
    fn detailed(&self, out: &mut Page<'_, '_>) -> fmt::Result {
        let mut all: Vec<(Labels<'_>, &Details)> = Vec::new();
        let mut expiries: Vec<(Labels<'_>, i64)> = Vec::new();
        for ((id, plan), record) in self.plan().checks.iter().zip(&self.records) {
            let labels = vec![("vip", &*id.vip), ("check", &*id.check), ("type", kind(&plan.probe))];
            if let Some(at) = record.certificate_expires.filter(|_| plan.detailed_metrics) {
                expiries.push((labels.clone(), at));
            }
            if let Some(details) = record.details.as_deref().filter(|_| plan.detailed_metrics) {
                all.push((labels, details));
            }
        }
        let mut family =
            gauge(out, "standfast_check_phase_seconds", "How long a phase of the last run took")?;
        for (labels, d) in &all {
            let phases = [
                ("resolve", d.resolve),
                ("connect", d.connect),
                ("tls", d.tls),
                ("first_byte", d.first_byte),
            ];
            for (phase, took) in phases {
                if let Some(took) = took {
                    family.gauge(&with(labels, "phase", phase), took.as_secs_f64())?;
                }
            }
        }
        let mut family = gauge(
            out,
            "standfast_check_certificate_expiry_timestamp_seconds",
            "When the certificate that was seen last expires, in seconds since 1970",
        )?;
        for (labels, at) in &expiries {
            family.gauge(labels, *at as f64)?;
        }
        let mut last = |name: &str, help: &str, of: &dyn Fn(&Details) -> Option<f64>| {
            let mut family = gauge(out, name, help)?;
            all.iter().try_for_each(|(labels, d)| of(d).map_or(Ok(()), |value| family.gauge(labels, value)))
        };
        last("standfast_check_http_status", "HTTP status of the last run", &|d| {
            d.http_status.map(f64::from)
        })?;
        last("standfast_check_http_body_bytes", "Octets of the body that the last run read", &|d| {
            d.body_bytes.map(|n| n as f64)
        })?;
        last("standfast_check_dns_answers", "DNS answers of the last run that counted", &|d| {
            d.rcode.as_ref().map(|_| d.answers.len() as f64)
        })?;
        last("standfast_check_exit_code", "Exit status of the last run's command", &|d| {
            d.exit_code.map(f64::from)
        })?;
        last(
            "standfast_check_ping_loss_ratio",
            "The part of the last run's echo requests that was lost",
            &|d| d.sent.filter(|&sent| sent > 0).map(|sent| 1.0 - d.rtts.len() as f64 / f64::from(sent)),
        )?;
        let mut family = gauge(out, "standfast_check_ping_rtt_seconds", "Round trips of the last run")?;
        for (labels, d) in all.iter().filter(|(_, d)| !d.rtts.is_empty()) {
            let mean = d.rtts.iter().sum::<Duration>().as_secs_f64() / d.rtts.len() as f64;
            let edge = |rtt: Option<&Duration>| rtt.map_or(0.0, Duration::as_secs_f64);
            for (stat, value) in
                [("min", edge(d.rtts.iter().min())), ("mean", mean), ("max", edge(d.rtts.iter().max()))]
            {
                family.gauge(&with(labels, "stat", stat), value)?;
            }
        }
        Ok(())
    }
}

fn with<'a>(labels: &Labels<'a>, name: &'static str, value: &'a str) -> Labels<'a> {
    let mut labels = labels.clone();
    labels.push((name, value));
    labels
}

/// The first prefix of the VIP that has a check; empty for one that VIPs share.
fn first_prefix(plan: &Plan, id: &CheckId) -> String {
    plan.vips.get(&*id.vip).and_then(|vip| vip.prefixes.first()).map_or_else(String::new, Prefix::to_string)
}

/// What the kernel says of this process. What it does not say is left out.
fn process(out: &mut Page<'_, '_>, started: SystemTime) -> fmt::Result {
    let none = Labels::new();
    let started = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    gauge(out, "process_start_time_seconds", "When this process began, in seconds since 1970")?
        .gauge(&none, started)?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident =
        status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    if let Some(kib) = resident {
        gauge(out, "process_resident_memory_bytes", "Memory of this process")?.gauge(&none, kib * 1024.0)?;
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        gauge(out, "process_open_fds", "Open descriptors of this process")?
            .gauge(&none, fds.count() as f64)?;
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.rsplit_once(") ").map(|(_, rest)| {
        let fields = rest.split(' ').skip(11).take(2);
        fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
    });
    if let Some(ticks) = ticks {
        let mut family = counter(out, "process_cpu_seconds", "Time that this process was on a processor")?;
        // The unit of this file is a hundredth of a second on every architecture.
        if let Some(family) = &mut family.0 {
            family.encode_counter::<NoLabelSet, _, u64>(&(ticks / 100.0), None)?;
        }
    }
    Ok(())
}
