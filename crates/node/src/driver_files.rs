//! The Python side of the code interpreter, embedded. Every template has it, at the same place.

/// Where it is found below `/usr`.
pub(crate) const DIRECTORY: &str = "lib/isopod/driver";

/// Names below [`DIRECTORY`], and contents.
pub(crate) static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/driver_files.rs"));
