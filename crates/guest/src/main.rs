//! `isopod-guest`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    isopod_guest::main()
}
