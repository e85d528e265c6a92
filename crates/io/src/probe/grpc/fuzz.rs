//! What a hostile server can send, given to each of the readers here.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use super::catalog::Catalog;
use super::health_answer;
use super::json::Method;
use super::reflect::take;
use super::wire::Frames;

/// A service with every kind of field.
const BANK: &[u8] = include_bytes!("../../../tests/grpc/bank.pb");

/// Nothing here is given up.
static WAITED: AtomicBool = AtomicBool::new(false);

/// What a reader makes of data that comes in pieces of this length: the messages, and whether it ended in one.
fn read(data: &[u8], piece: usize) -> Option<(Vec<Vec<u8>>, bool)> {
    let (mut frames, mut messages) = (Frames::new(1 << 16), Vec::new());
    for data in data.chunks(piece) {
        frames.feed(data, &mut messages).ok()?;
    }
    Some((messages, frames.is_cut()))
}

pub(in crate::probe) fn frames(octets: &[u8]) {
    let whole = read(octets, usize::MAX);
    for piece in [1, 2, 3, 7, 64] {
        assert_eq!(whole, read(octets, piece), "in pieces of {piece}");
    }
    for message in whole.into_iter().flat_map(|(messages, _)| messages) {
        let _ = health_answer(&message);
        let _ = take(&message, &mut Catalog::default());
    }
}

pub(in crate::probe) fn descriptors(octets: &[u8]) {
    let mut one = Catalog::default();
    let one = one.add(octets).map(|()| one);
    for catalog in [Catalog::of_set(octets), one].into_iter().flatten() {
        let _ = catalog.unread().count();
        for path in catalog.paths().take(8) {
            let _ = catalog.missing(path);
            let Ok(method) = catalog.method(path) else { continue };
            let Ok(request) = method.encode("{}") else { continue };
            assert!(request.is_empty(), "{path}: {request:?}");
            let _ = method.decode(octets, &WAITED);
            let _ = method.decode(&[], &WAITED);
        }
    }
}

pub(in crate::probe) fn answer(octets: &[u8]) {
    static METHOD: LazyLock<Option<Method>> =
        LazyLock::new(|| Catalog::of_set(BANK).ok()?.method("/bank.v1.Ledger/Look").ok());
    let Some(method) = &*METHOD else { panic!("the service of the tests cannot be read") };
    let Ok(json) = method.decode(octets, &WAITED) else { return };
    if let Err(e) = serde_json::from_slice::<serde::de::IgnoredAny>(&json) {
        // An answer may be deeper than a reader of JSON cares to go.
        assert!(e.to_string().contains("recursion limit"), "{e}: {}", String::from_utf8_lossy(&json));
    }
}
