//! FUSE requests, answered by a file system in memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_storage::fuzzing::fuse_request(data));
