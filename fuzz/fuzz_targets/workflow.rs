//! Workflows in YAML and JSON.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_agents::fuzzing::workflow(data));
