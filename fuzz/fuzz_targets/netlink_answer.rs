//! What is read from netlink sockets.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_network::fuzzing::netlink_answer(data));
