//! Connect streams and messages that a guest sends.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest_client::fuzzing::connect_reply(data));
