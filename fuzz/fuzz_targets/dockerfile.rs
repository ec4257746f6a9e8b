//! Dockerfiles, variables, patterns and .dockerignore.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_image::fuzzing::dockerfile(data));
