//! References, manifests, image configurations, challenges and redirects of registries.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| isopod_image::fuzzing::image_text(data));
