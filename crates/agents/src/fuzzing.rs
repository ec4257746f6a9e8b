//! Entry points for the fuzz targets in `/fuzz`: the parsers of what clients send. Each function takes any bytes and
//! panics if its parser breaks a promise.

use std::path::Path;

use crate::runs::Workflow;
use crate::sessions::RelPath;

/// Parses a workflow, and the path of a file of a run.
pub fn workflow(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Workflow::parse(text);
        read_path(text);
    }
}

/// Asserts that an accepted path stays below its directory.
fn read_path(text: &str) {
    let below = |path: &str| !Path::new("/top").join(path).components().any(|part| part.as_os_str() == "..");
    if let Ok(path) = RelPath::parse(text) {
        assert!(below(path.as_str()) && path.as_path().is_relative(), "{path:?}");
    }
}
