//! Archives with the context of a Dockerfile build.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_control::fuzzing::build_context(data));
