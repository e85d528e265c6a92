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
/// accident. `SURFACE=write` writes it anew.
#[test]
fn the_public_surface_is_the_one_that_was_promised() {
    let file = here().join("public-api.txt");
    let now = surface().into_iter().fold(String::new(), |text, line| text + &line + "\n");
    if std::env::var_os("SURFACE").is_some_and(|how| how == "write") {
        std::fs::write(&file, &now).unwrap();
    }
    let promised = std::fs::read_to_string(&file).unwrap();
    let (was, is): (BTreeSet<&str>, BTreeSet<&str>) = (promised.lines().collect(), now.lines().collect());
    let gone: Vec<_> = was.difference(&is).collect();
    let new: Vec<_> = is.difference(&was).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone or changed: {gone:#?}\nnew: {new:#?}\nIf it is meant: SURFACE=write cargo test -p standfast --test promises"
    );
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
