//! Entry points for the fuzz targets in `/fuzz`: the parsers of what guests send. Each function takes any bytes and
//! panics if a guarantee of its parser does not hold.

pub use crate::guest::fuzz::connect_reply;
pub use crate::interpreter::fuzz::interpreter_reply;
