//! Layers of images and other archives.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_image::fuzzing::layer(data));
