//! To which sandbox a request goes: host, headers, path, signed URL.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_control::fuzzing::edge_route(data));
