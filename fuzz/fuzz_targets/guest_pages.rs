//! What a guest says that processes printed.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_control::fuzzing::guest_pages(data));
