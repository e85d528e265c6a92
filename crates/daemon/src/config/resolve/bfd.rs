//! BFD of a neighbour or of a range of members: its keys to a plan, or every reason why not.

use std::time::Duration;

use standfast_core::bfd::wire::KEY_LEN;
use standfast_core::bfd::{MULTIHOP_PORT, PORT};
use standfast_core::plan::{self, Ttl};

use super::super::file::{Bfd, BfdAuth};
use super::super::read::{At, Findings};
use super::super::value::{BfdAuthType, Int, show};
use super::or;

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(10);

/// BFD beside a BGP session that reaches as far as `ttl` says.
pub(super) fn bfd(at: &Option<At<Bfd>>, ttl: Ttl, out: &mut Findings) -> Option<plan::Bfd> {
    let at = at.as_ref().filter(|at| or(&at.enabled, true))?;
    let default = plan::Bfd::new();
    let interval = either(
        ("interval", &at.interval),
        ("desired_minimum_tx_interval", &at.desired_minimum_tx_interval),
        out,
    );
    let min_rx =
        either(("min_rx", &at.min_rx), ("required_minimum_receive", &at.required_minimum_receive), out);
    let multiplier = multiplier(at, out).unwrap_or(default.multiplier);
    let (reached, least) = plan::Bfd::reach(ttl);
    let multihop = or(&at.multihop, reached);
    if let Some(port) = &at.port {
        let wanted = if multihop { MULTIHOP_PORT } else { PORT };
        if port.get() != 0 && port.get() != i64::from(wanted) {
            let hops = if multihop { "over several hops" } else { "over a single hop" };
            out.error(port, format!("BFD {hops} is on UDP port {wanted} at both ends"))
                .help("leave port away");
        }
    }
    if let Some(min) = at.min_ttl.as_ref().filter(|_| !multihop) {
        out.error(min, "min_ttl has no effect over a single hop: packets must come with a hop limit of 255")
            .help("leave min_ttl away, or add `multihop: true`");
    }
    let min_ttl = match (multihop, &at.min_ttl) {
        (false, _) => 255,
        (true, Some(min)) => min.to(),
        (true, None) => {
            if reached {
                least
            } else {
                1
            }
        }
    };
    if let Some(given) = at.multihop.as_ref().filter(|given| reached && !given.value) {
        out.warn(
            given,
            "the BGP session may cross several hops, but BFD will not: it stays down unless the other end is on a link of this host",
        );
    }
    let auth = at.auth.as_ref().and_then(|auth| self::auth(auth, out));
    if multihop && min_ttl == 1 && at.auth.is_none() {
        out.warn(
            at,
            "over several hops anybody who guesses a number can forge BFD packets: add `auth`, or `min_ttl` if the number of hops is known",
        );
    }
    let strict = or(&at.strict, false);
    let hold = or(&at.strict_hold_time, Duration::from_secs(30));
    if let Some(given) = &at.strict_hold_time {
        if !strict {
            out.error(given, "strict_hold_time has no effect without strict").help("add `strict: true`");
        } else if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&hold) {
            out.error(given, "strict_hold_time is not 1s to 10m");
        }
    }
    let interval = interval.unwrap_or(default.interval);
    Some(plan::Bfd {
        interval,
        min_rx: min_rx.unwrap_or(interval),
        multiplier,
        multihop,
        min_ttl,
        auth,
        strict: strict.then_some(hold),
        passive: or(&at.passive, false),
    })
}

/// An interval by its own key, or by pathosd's, which counts microseconds.
fn either(
    (name, own): (&str, &Option<At<Duration>>),
    (other_name, other): (&str, &Option<At<Int<0, 4_294_967_295>>>),
    out: &mut Findings,
) -> Option<Duration> {
    if let (Some(own), Some(other)) = (own, other) {
        out.error(other, format!("{other_name} and {name} say the same"))
            .note(&own.place, "the other one")
            .help(format!("keep {name}"));
    }
    let mut check = |at: &At<()>, d: Duration| {
        if !(SHORTEST..=LONGEST).contains(&d) {
            out.error(at, format!("{} is not between 10ms and 10s", show(d))).help(
                "50ms to 300ms is usual between hosts; the detection time is this times the multiplier",
            );
        }
        d
    };
    let own = own.as_ref().map(|at| check(&at.whole(), at.value));
    own.or_else(|| {
        let at = other.as_ref()?;
        let micros = match at.get() {
            0 => 1_000_000,
            n => u64::try_from(n).unwrap_or(0),
        };
        Some(check(&at.whole(), Duration::from_micros(micros)))
    })
}

fn multiplier(at: &Bfd, out: &mut Findings) -> Option<u8> {
    if let (Some(own), Some(other)) = (&at.multiplier, &at.detection_multiplier) {
        out.error(other, "detection_multiplier and multiplier say the same")
            .note(&own.place, "the other one")
            .help("keep multiplier");
    }
    if let Some(own) = &at.multiplier {
        return Some(own.to());
    }
    let other = at.detection_multiplier.as_ref()?;
    if other.get() == 1 {
        out.error(other, "with a multiplier of 1 a single lost packet ends the session").help("write 3");
    }
    Some(other.to()).filter(|n| *n != 0)
}

fn auth(at: &At<BfdAuth>, out: &mut Findings) -> Option<plan::BfdAuth> {
    let key = at.key.as_ref()?;
    let length = key.reveal().len();
    if !(1..=KEY_LEN).contains(&length) {
        out.error(key, format!("the key has {length} octets, BFD takes 1 to {KEY_LEN}"));
    }
    Some(plan::BfdAuth {
        meticulous: or(&at.r#type, BfdAuthType::Meticulous) == BfdAuthType::Meticulous,
        key_id: at.key_id.as_ref()?.to(),
        key: key.value.clone(),
    })
}
