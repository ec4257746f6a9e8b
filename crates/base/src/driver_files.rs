//! The Python part of the code interpreter, embedded. Every template has it in the same directory.

/// The directory, relative to `/usr`.
pub(crate) const DIRECTORY: &str = "lib/isopod/driver";

/// Paths relative to [`DIRECTORY`], and contents.
pub(crate) static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/driver_files.rs"));
