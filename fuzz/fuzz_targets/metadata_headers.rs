//! Metadata of uploaded files.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::metadata_headers(data));
