//! The command line of the sandbox's sudo.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::sudo_arguments(data));
