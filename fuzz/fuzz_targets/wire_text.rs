//! Ids, networks, sizes and build steps.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_wire::fuzzing::wire_text(data));
