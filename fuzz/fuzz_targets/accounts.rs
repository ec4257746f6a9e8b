//! `/etc/passwd` and `/etc/group` of a sandbox.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::accounts(data));
