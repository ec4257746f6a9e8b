//! The interpreter driver's lines (NDJSON) and output.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_guest::fuzzing::kernel_stream(data));
