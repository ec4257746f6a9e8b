//! Requests as they come on a connection.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_control::fuzzing::http_framing(data));
