//! The frames of a stream that passes the edge.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_control::fuzzing::edge_stream(data));
