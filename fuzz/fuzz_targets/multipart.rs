//! Uploaded forms.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::multipart(data));
