//! Names, paths, times, filters and addresses in requests of the API.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_control::fuzzing::api_text(data));
