//! Entry points for the fuzz targets in `/fuzz`: the parsers of what registries and the authors of images and
//! Dockerfiles write. Each function takes any bytes and panics if its parser breaks a promise.

pub use crate::dockerfile::fuzz::dockerfile;
pub use crate::registry::fuzz::image_text;
pub use crate::unpack::fuzz::layer;
