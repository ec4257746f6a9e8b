//! The parsers that read what guests send, for the fuzz targets in `/fuzz`. Each function takes any bytes
//! and panics when a promise of its parser does not hold.

pub use crate::guest::fuzz::connect_reply;
pub use crate::interpreter::fuzz::interpreter_reply;
