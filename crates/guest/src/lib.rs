//! The program inside every sandbox. `isopod-guest init` is the daemon, which also runs as pid 1. Called as `sudo`, it is
//! the sandbox's sudo. It is one static file, so it runs in any root file system.
//!
//! `main.rs` only calls [`main`]. The code is in a library so that the fuzz targets can use it.

mod blocking;
mod checkpoint;
mod connection;
mod deadline;
mod encoded;
mod environment;
mod files;
mod fs;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod guest;
mod http;
mod init;
mod interpreter;
mod logs;
mod metrics;
mod paths;
mod proc_overrides;
mod process;
mod rights;
mod rpc;
mod server;
mod settings;
mod stderr;
mod stdio;
mod sudo;
mod sys;
mod users;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The whole program.
pub fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let called_as = args.first().and_then(|name| Path::new(name).file_name()).map(OsString::from);
    if called_as.is_some_and(|name| name == "sudo") {
        return sudo::run(&args[1..]);
    }
    if args.len() < 2 {
        return usage();
    }
    let applet = args.remove(1);
    match applet.to_str() {
        Some("init") => init::run(&args[1..]),
        Some("sudo") => sudo::run(&args[1..]),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    stderr::print_line("usage: isopod-guest init --listen-fd N | sudo ...");
    ExitCode::from(2)
}
