//! A line of shell that a rule about commands reads.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_service::fuzzing::command_line(data));
