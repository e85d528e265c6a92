//! What is promised to those who embed the crate: its public surface, and how little comes with it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::{Fields, ImplItem, Item, UseTree, Visibility};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `public-api.txt` is what others build on. A line that goes or changes is a break, a new one a promise: either is meant, or an
/// accident. `SURFACE=write` writes it anew, `SURFACE=release` also makes it what the version in Cargo.toml promises.
#[test]
fn the_public_surface_is_the_one_that_was_promised() {
    let (file, released) = (here().join("public-api.txt"), here().join("public-api.released.txt"));
    let version = Version::of(env!("CARGO_PKG_VERSION"));
    let now = surface().into_iter().fold(String::new(), |text, line| text + &line + "\n");
    let how = std::env::var("SURFACE").unwrap_or_default();
    if ["write", "release"].contains(&&*how) {
        std::fs::write(&file, &now).unwrap();
    }
    if how == "release" {
        std::fs::write(&released, format!("{version}\n{now}")).unwrap();
    }
    let promised = std::fs::read_to_string(&file).unwrap();
    let (was, is): (BTreeSet<&str>, BTreeSet<&str>) = (promised.lines().collect(), now.lines().collect());
    let gone: Vec<_> = was.difference(&is).collect();
    let new: Vec<_> = is.difference(&was).collect();
    let released = std::fs::read_to_string(&released).unwrap();
    let (of, released) = released.split_once('\n').unwrap();
    let needs = judge(Version::of(of), released, version, &now);
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone or changed: {gone:#?}\nnew: {new:#?}\n{}\n\
         If it is meant: SURFACE=write cargo test -p standfast --test promises",
        needs.err().unwrap_or_default()
    );
    needs.unwrap();
}

/// As Cargo reads it: below 1.0.0 the second number is what the first one is later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u64; 3]);

impl Version {
    fn of(text: &str) -> Self {
        let numbers: Vec<u64> = text.trim().split('.').map(|n| n.parse().unwrap()).collect();
        Self(numbers.try_into().unwrap())
    }

    /// The least version after this one that may break, or add.
    const fn next(self, breaks: bool) -> Self {
        match (self.0, breaks) {
            ([0, 0, patch], _) => Self([0, 0, patch + 1]),
            ([0, minor, _], true) => Self([0, minor + 1, 0]),
            ([0, minor, patch], false) => Self([0, minor, patch + 1]),
            ([major, ..], true) => Self([major + 1, 0, 0]),
            ([major, minor, _], false) => Self([major, minor + 1, 0]),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Whether version `is`, with this surface, may follow the released one, with its own. What is added to the version that was released
/// last is not released yet, and may be; what it promised stays.
fn judge(was: Version, released: &str, is: Version, now: &str) -> Result<(), String> {
    let (old, new) = (promises(released), promises(now));
    let gone = old.difference(&new).map(|line| format!("gone: {line}"));
    // Whoever names every variant, or every field, does not know a new one.
    let whole = |of: &str| old.contains(&format!("{of} is known as a whole"));
    let grown =
        new.difference(&old).filter(|line| line.split_once(['.', ':']).is_some_and(|(of, _)| whole(of)));
    let grown = grown.filter(|line| !line.contains("fn ")).map(|line| format!("grown: {line}"));
    let breaks: Vec<String> = gone.chain(grown).collect();
    let adds: Vec<&String> = new.difference(&old).collect();
    let least = match (breaks.is_empty(), adds.is_empty() || is == was) {
        (false, _) => was.next(true),
        (true, false) => was.next(false),
        (true, true) => was,
    };
    if is >= least {
        return Ok(());
    }
    Err(format!(
        "breaking since {was}: {breaks:#?}\nadded: {adds:#?}\nThis needs {least} at least, and Cargo.toml says {is}."
    ))
}

/// What lines of a surface promise, one by one: each trait that is derived, and that nothing will be added to what is not
/// `non_exhaustive`.
fn promises(surface: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in surface.lines() {
        let (head, marks) = line.split_once(" #[").unwrap_or((line, ""));
        all.insert(head.to_owned());
        let Some(name) = head.strip_prefix("enum ").or_else(|| head.strip_prefix("struct ")) else {
            continue;
        };
        let name = name.split('<').next().unwrap_or(name);
        let derived = marks.split_once("derive(").and_then(|(_, list)| list.split_once(')'));
        let derived = derived.into_iter().flat_map(|(list, _)| list.split(", "));
        all.extend(derived.map(|of| format!("impl {of} for {name}")));
        let field = format!("{name}.");
        let is_open = head.starts_with("enum ") || surface.lines().any(|line| line.starts_with(&field));
        if is_open && !marks.contains("non_exhaustive") {
            all.insert(format!("{name} is known as a whole"));
        }
    }
    all
}

#[test]
fn a_break_needs_its_version_and_is_named() {
    let old = "A::fn one(&self)\nE::X\nOpen::X\nS.a: u8\nenum E #[derive(Clone, Copy)]\nenum Open #[non_exhaustive]\nstruct A #[must_use]\nstruct S";
    let judge = |was, is, now: &str| judge(Version::of(was), old, Version::of(is), now);
    let with = |line: &str| format!("{old}\n{line}");
    let without = |line: &str, other: &str| old.replace(line, other);
    for (was, is) in [("0.1.0", "0.1.0"), ("0.1.0", "0.1.1"), ("1.2.3", "1.2.4")] {
        assert_eq!(judge(was, is, old), Ok(()), "nothing is new");
        assert_eq!(judge(was, is, &without(" #[must_use]", "")), Ok(()), "nothing that was promised");
    }
    let breaks = [
        (without("A::fn one(&self)\n", ""), "gone: A::fn one(&self)"),
        (without("one(&self)", "one(&mut self)"), "gone: A::fn one(&self)"),
        (without("Clone, Copy", "Clone"), "gone: impl Copy for E"),
        (without("struct S", "struct S #[non_exhaustive]"), "gone: S is known as a whole"),
        (with("E::Y"), "grown: E::Y"),
        (with("S.b: u8"), "grown: S.b: u8"),
    ];
    for (now, words) in &breaks {
        for (was, not, enough) in
            [("0.1.0", "0.1.9", "0.2.0"), ("1.2.3", "1.9.0", "2.0.0"), ("0.0.1", "0.0.1", "0.0.2")]
        {
            let why = judge(was, not, now).unwrap_err();
            assert!(why.contains(words) && why.contains(&format!("needs {enough} at least")), "{why}");
            assert_eq!(judge(was, enough, now), Ok(()));
        }
    }
    let adds = [
        with("Open::Y"),
        with("A::fn two(&self)"),
        with("E::fn two(&self)"),
        without("Clone, Copy", "Clone, Copy, Eq"),
        without("Open #[non_exhaustive]", "Open"),
    ];
    for now in &adds {
        for (was, is, may) in [
            ("0.1.0", "0.1.0", true),
            ("0.1.0", "0.1.1", true),
            ("1.2.3", "1.2.3", true),
            ("1.2.3", "1.2.4", false),
            ("1.2.3", "1.3.0", true),
        ] {
            assert_eq!(judge(was, is, now).is_ok(), may, "{was} to {is}: {now}");
        }
    }
    assert!(judge("0.2.0", "0.1.0", old).is_err(), "a version that is older than what was released");
}

/// Every public item of the crate in one line each: what `lib.rs` has, and what it re-exports of its modules.
fn surface() -> BTreeSet<String> {
    let source = here().join("src");
    let root = parse(&source.join("lib.rs"));
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for item in &root {
        if let Item::Use(item) = item
            && is_public(&item.vis)
        {
            let UseTree::Path(path) = &item.tree else { panic!("an export that is not of a module") };
            let names = exported.entry(path.ident.to_string()).or_default();
            match &*path.tree {
                UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
                UseTree::Group(group) => {
                    for tree in &group.items {
                        let UseTree::Name(name) = tree else { panic!("an export under another name") };
                        names.insert(name.ident.to_string());
                    }
                }
                _ => panic!("an export that is neither a name nor a list of names"),
            }
        }
    }
    let own = root.iter().filter_map(name_of).collect();
    let mut lines = BTreeSet::new();
    list(&root, &own, &mut lines);
    for (module, names) in exported {
        let items = parse(&source.join(format!("{module}.rs")));
        let known: BTreeSet<String> = items.iter().filter_map(name_of).collect();
        assert!(names.is_subset(&known), "{module} does not define all of {names:?}");
        list(&items, &names, &mut lines);
    }
    lines
}

fn parse(file: &Path) -> Vec<Item> {
    syn::parse_file(&std::fs::read_to_string(file).unwrap()).unwrap().items
}

const fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

/// The name of a public item.
fn name_of(item: &Item) -> Option<String> {
    match item {
        Item::Struct(item) if is_public(&item.vis) => Some(item.ident.to_string()),
        Item::Enum(item) if is_public(&item.vis) => Some(item.ident.to_string()),
        Item::Fn(item) if is_public(&item.vis) => Some(item.sig.ident.to_string()),
        Item::Mod(item) if item.ident == "tests" => None,
        Item::Trait(item) if is_public(&item.vis) => panic!("teach this test about traits: {}", item.ident),
        Item::Type(item) if is_public(&item.vis) => panic!("teach this test about types: {}", item.ident),
        Item::Const(item) if is_public(&item.vis) => {
            panic!("teach this test about constants: {}", item.ident)
        }
        Item::Mod(item) if is_public(&item.vis) => panic!("teach this test about modules: {}", item.ident),
        _ => None,
    }
}

fn list(items: &[Item], names: &BTreeSet<String>, lines: &mut BTreeSet<String>) {
    for item in items {
        match item {
            Item::Struct(item) if names.contains(&item.ident.to_string()) => {
                let name = &item.ident;
                lines.insert(format!("struct {}{}", text(name), marks(&item.attrs)));
                for (n, field) in item.fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis)) {
                    let field_name = field.ident.as_ref().map_or(n.to_string(), ToString::to_string);
                    lines.insert(format!("{name}.{field_name}: {}", text(&field.ty)));
                }
            }
            Item::Enum(item) if names.contains(&item.ident.to_string()) => {
                let name = &item.ident;
                lines.insert(format!("enum {}{}", text(name), marks(&item.attrs)));
                for variant in &item.variants {
                    let fields = if matches!(variant.fields, Fields::Unit) {
                        String::new()
                    } else {
                        bare(&variant.fields)
                    };
                    lines.insert(format!("{name}::{}{fields}", variant.ident));
                }
            }
            Item::Fn(item) if names.contains(&item.sig.ident.to_string()) => {
                lines.insert(text(&item.sig));
            }
            Item::Impl(item) => {
                let of = text(&item.self_ty);
                let about = |name: &String| {
                    let from = item
                        .trait_
                        .as_ref()
                        .is_some_and(|(_, path, _)| text(path).contains(&format!("<{name}>")));
                    of == *name || of.starts_with(&format!("{name}<")) || from
                };
                if !names.iter().any(about) {
                    continue;
                }
                if let Some((_, path, _)) = &item.trait_ {
                    let head = text(&item.generics);
                    let clause = item.generics.where_clause.as_ref().map(text).unwrap_or_default();
                    lines
                        .insert(format!("impl{head} {} for {of} {clause}", text(path)).trim_end().to_owned());
                    continue;
                }
                for item in &item.items {
                    if let ImplItem::Fn(method) = item
                        && is_public(&method.vis)
                    {
                        lines.insert(format!("{of}::{}", text(&method.sig)));
                    }
                }
            }
            _ => {}
        }
    }
}

/// What is derived, and what is kept open.
fn marks(attributes: &[syn::Attribute]) -> String {
    let kept = attributes
        .iter()
        .filter(|a| ["derive", "non_exhaustive", "must_use"].iter().any(|name| a.path().is_ident(name)));
    let kept = kept.map(|a| match a.path().is_ident("must_use") {
        true => "must_use".to_owned(),
        false => text(&a.meta),
    });
    kept.fold(String::new(), |text, mark| text + " #[" + &mark + "]")
}

/// Fields without their documentation.
fn bare(fields: &Fields) -> String {
    let mut fields = fields.clone();
    fields.iter_mut().for_each(|field| field.attrs.clear());
    let text = text(&fields);
    if text.starts_with('{') { format!(" {text}") } else { text }
}

/// Tokens as one would write them, near enough to be read and to be compared.
fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" ,", ","),
        (" :", ":"),
        ("& ", "&"),
        ("( ", "("),
        (" )", ")"),
        (" (", "("),
        ("' ", "'"),
        (",)", ")"),
        (" <", "<"),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// Crates that come along, without optional features; the README says the number too.
#[test]
fn few_crates_come_along() {
    let out = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "-p",
            "standfast",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--no-dedupe",
        ])
        .current_dir(here())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    // By name and version.
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let crates: BTreeSet<String> = said.lines().filter(|line| !line.is_empty()).map(name).collect();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let has = |name: &str| crates.iter().any(|found| found.split(' ').next() == Some(name));
    assert!(has("mio") && crates.len() < 50, "{} crates: {crates:?}", crates.len());
    assert!(!has("tokio"), "no runtime comes along");
    let readme = std::fs::read_to_string(here().join("README.md")).unwrap();
    let promise = format!("{} crates", crates.len());
    assert!(readme.contains(&promise), "README.md does not say {promise:?}: {crates:?}");
}

/// The whole policy is one example that is read in a minute.
#[test]
fn the_gateway_is_less_than_sixty_lines() {
    let example = std::fs::read_to_string(here().join("examples/gateway.rs")).unwrap();
    assert!(example.lines().count() < 60, "{} lines", example.lines().count());
}
