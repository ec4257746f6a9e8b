//! Calls into one sandbox, however its guest is reached. Both backends use it.

mod error;
mod files;
mod run_code;
mod start;

pub(super) use error::{Phase, of_guest};
pub(super) use files::{read_file, write_file};
pub(super) use run_code::run_code;
pub(super) use start::start;
