//! Entry points for the fuzz targets in `/fuzz`: the parsers of what clients and sandboxes send. Each function takes any
//! bytes and panics if its parser breaks a promise.

pub use crate::files::fuzz::{file_headers, multipart};
pub use crate::fs::fuzz::metadata_headers;
pub use crate::http::fuzz::query;
pub use crate::interpreter::fuzz::kernel_stream;
pub use crate::rpc::fuzz::connect_request;
pub use crate::sudo::fuzz::sudo_arguments;
pub use crate::users::fuzz_accounts as accounts;
