//! Work inside one sandbox, whichever way its guest is reached: both backends end here.

mod error;
mod files;
mod start;

pub(super) use error::{Phase, of_guest};
pub(super) use files::{read_file, write_file};
pub(super) use start::start;
