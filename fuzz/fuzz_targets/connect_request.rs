//! Connect streams and messages that a client sends.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::connect_request(data));
