//! See `tests/bench/fuzz.rs`, which says what the octets mean.

#![no_main]

#[path = "../../tests/bench/mod.rs"]
mod bench;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bench::fuzz::inputs(data));
