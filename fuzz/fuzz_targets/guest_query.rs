//! Queries, paths and credentials of requests to a guest.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::query(data));
