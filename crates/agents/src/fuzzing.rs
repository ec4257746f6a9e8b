//! The parsers that read what clients send, for the fuzz targets in `/fuzz`. Each function takes any bytes
//! and panics when a promise of its parser does not hold.

use std::path::Path;

use crate::runs::Workflow;
use crate::sessions::RelPath;

/// A workflow, and the path of a file of a run.
pub fn workflow(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Workflow::parse(text);
        read_path(text);
    }
}

/// A path that is understood stays in the directory that it is in.
fn read_path(text: &str) {
    let below = |path: &str| !Path::new("/top").join(path).components().any(|part| part.as_os_str() == "..");
    if let Ok(path) = RelPath::parse(text) {
        assert!(below(path.as_str()) && path.as_path().is_relative(), "{path:?}");
    }
}
