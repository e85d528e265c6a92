//! Which checks a VIP has: its own, and those that it shares with others.

use std::collections::BTreeMap;
use std::ops::Range;

use standfast_core::plan::{self, CheckId, Plan};
use standfast_core::prefix::Prefix;
use standfast_core::spelling::closest;

use super::super::file::{Check, CheckUse, Vip};
use super::super::probe;
use super::super::read::{At, Findings};
use super::list;

/// The checks of the section `checks` by name.
pub(super) struct Shared<'a>(BTreeMap<String, One<'a>>);

struct One<'a> {
    at: &'a At<Check>,
    /// `None`: something is wrong with it, and reported.
    check: Option<plan::Check>,
    used: bool,
}

impl<'a> Shared<'a> {
    /// Resolves every shared check, whether a VIP uses it or not.
    pub(super) fn new(checks: &'a [At<Check>], out: &mut Findings) -> Self {
        let mut shared: BTreeMap<String, One<'a>> = BTreeMap::new();
        for at in checks {
            let Some(name) = &at.name else {
                if !out.under(&format!("{}.name", at.path)) {
                    out.error(at, "`name` is missing: VIPs use a shared check by its name");
                }
                continue;
            };
            if let Some(first) = shared.get(&name.value.0).and_then(|one| one.at.name.as_ref()) {
                out.error(name, format!("two shared checks are named `{}`", name.value.0))
                    .note(&first.place, "the first one");
                continue;
            }
            let check = at.r#type.as_ref().map(|kind| probe::check(at, kind, None, out));
            shared.insert(name.value.0.clone(), One { at, check, used: false });
        }
        Self(shared)
    }

    /// Says which ones nobody uses; they do not run.
    pub(super) fn unused(&self, out: &mut Findings) {
        for (name, one) in self.0.iter().filter(|(_, one)| !one.used) {
            let Some(at) = &one.at.name else { continue };
            out.warn(at, format!("no VIP uses the shared check `{name}`: it does not run"))
                .help(format!("use it with `check: {name}`, or in a list of `checks`"));
        }
    }
}

/// The checks of a VIP by the name that its policy uses, in the order of the file; each is in `plan` afterwards.
pub(super) fn of_vip(
    vip: &str,
    at: &At<Vip>,
    prefixes: &[Prefix],
    shared: &mut Shared<'_>,
    plan: &mut Plan,
    out: &mut Findings,
) -> Vec<(String, CheckId)> {
    let given: Vec<&At<CheckUse>> = match (&at.check, &at.checks) {
        (Some(one), Some(several)) => {
            out.error(one, "check and checks are both given")
                .note(&several.place, "the other one")
                .help("keep one of them");
            vec![one]
        }
        (Some(one), None) => vec![one],
        (None, several) => list(several).iter().collect(),
    };
    if given.is_empty() && !out.under(&format!("{}.check", at.path)) {
        out.error(at, "this VIP has no check: it would never be announced").help("add a `check` section");
    }
    let mut named: BTreeMap<String, Range<usize>> = BTreeMap::new();
    let mut checks = Vec::new();
    for item in given {
        let (name, place, unnamed) = match &item.value {
            CheckUse::Shared(name) => (name.0.clone(), item.place.clone(), false),
            CheckUse::Own(check) => {
                let Some(kind) = &check.r#type else { continue };
                if check.name.is_none() && out.under(&format!("{}.name", check.path)) {
                    continue;
                }
                match &check.name {
                    Some(name) => (name.value.0.clone(), name.place.clone(), false),
                    None => (probe::word(kind.value).to_owned(), kind.place.clone(), true),
                }
            }
        };
        if let Some(first) = named.get(&name) {
            let finding = out.at(&item.path, &place, format!("two checks of this VIP are named `{name}`"));
            finding.note(first, "the first one");
            if unnamed {
                finding.help("a check without a name is named after its type: give each a `name`");
            }
            continue;
        }
        let resolved = match &item.value {
            CheckUse::Shared(_) => one(&name, item, shared, out).map(|c| (CheckId::shared(&name), c)),
            CheckUse::Own(check) => check
                .r#type
                .as_ref()
                .map(|kind| (CheckId::new(vip, &name), probe::check(check, kind, Some(prefixes), out))),
        };
        named.insert(name.clone(), place);
        // A name that means nothing is reported; the policy may use it all the same.
        let id = match resolved {
            Some((id, mut check)) => {
                probe::about(&mut check.probe, &id.vip, &id.check);
                plan.checks.insert(id.clone(), check);
                id
            }
            None => CheckId::shared(&name),
        };
        checks.push((name, id));
    }
    checks
}

/// The shared check of this name.
fn one(name: &str, at: &At<CheckUse>, shared: &mut Shared<'_>, out: &mut Findings) -> Option<plan::Check> {
    if let Some(one) = shared.0.get_mut(name) {
        one.used = true;
        return one.check.clone();
    }
    let meant = closest(name, shared.0.keys().map(String::as_str)).map(str::to_owned);
    let finding = out.error(at, format!("there is no shared check named `{name}`"));
    match meant {
        Some(meant) => finding.help(format!("did you mean `{meant}`?")),
        None => finding.help("add it under `checks` at the top of the file, or write the check itself here"),
    };
    None
}
