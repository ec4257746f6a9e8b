//! The lines of a code interpreter that the server reads.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest_client::fuzzing::interpreter_reply(data));
