//! Listings, names and attributes from a bucket.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_storage::fuzzing::s3_answer(data));
