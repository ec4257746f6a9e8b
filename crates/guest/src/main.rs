//! The program inside every sandbox. `isopod-guest init` is its daemon (and its pid 1); called as `sudo` it is the
//! sandbox's sudo. One static file, so that it runs in any root file system.

mod blocking;
mod deadline;
mod figures;
mod files;
mod fs;
mod guest;
mod http;
mod init;
mod interpreter;
mod logs;
mod metrics;
mod paths;
mod process;
mod rights;
mod rpc;
mod settings;
mod sudo;
mod sys;
mod users;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
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
    complain("usage: isopod-guest init --listen-fd N | sudo ...");
    ExitCode::from(2)
}

/// A line on standard error. There is nobody to tell when that fails.
fn complain(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}
