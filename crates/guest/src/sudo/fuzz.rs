//! Fuzzed: sudo's command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Takes arguments separated by NUL bytes.
pub fn sudo_arguments(data: &[u8]) {
    let arguments: Vec<OsString> = data.split(|byte| *byte == 0).map(|one| OsString::from_vec(one.to_vec())).collect();
    if let Ok(request) = super::args::parse(&arguments) {
        assert!(arguments.ends_with(&request.command) || request.command.is_empty());
    }
}
