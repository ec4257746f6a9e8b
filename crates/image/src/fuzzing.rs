//! The parsers that read what registries and the authors of images and Dockerfiles send, for the fuzz targets in `/fuzz`. Each function takes any bytes
//! and panics when a promise of its parser does not hold.

pub use crate::dockerfile::fuzz::dockerfile;
pub use crate::registry::fuzz::image_text;
pub use crate::unpack::fuzz::layer;
