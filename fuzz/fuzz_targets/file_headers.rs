//! Ranges, dates, encodings and signatures of file requests.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::file_headers(data));
