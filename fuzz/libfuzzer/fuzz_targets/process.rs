#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| standfast_fuzz::run("process", octets));
