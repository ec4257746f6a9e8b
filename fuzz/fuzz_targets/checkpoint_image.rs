//! CRIU's images of saved processes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_checkpoint::fuzzing::checkpoint_image(data));
