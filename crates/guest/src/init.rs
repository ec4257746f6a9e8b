//! `isopod-guest init`: takes over its inherited descriptors and serves requests.
//!
//! As pid 1 of a sandbox it also reaps orphans. To start fast, it does only what is needed before it listens.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::process::DumpableBehavior;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::guest::Guest;
use crate::metrics::Meters;
use crate::stderr::print_line;
use crate::{interpreter, server, sys};

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot use descriptor {number} ({option}): {source}")]
    Descriptor { option: &'static str, number: i32, source: io::Error },
    #[error("cannot listen: {0}")]
    Listen(io::Error),
    #[error("cannot open the interpreter's port: {0}")]
    Interpreter(io::Error),
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("cannot open the standard streams: {0}")]
    StandardStreams(io::Error),
}

/// Runs the daemon until it is killed.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    match try_run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!("isopod-guest: {error}"));
            ExitCode::from(2)
        }
    }
}

fn try_run(args: &[OsString]) -> Result<(), InitError> {
    // First of all: no process in the sandbox may read or trace the guest.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let options = Options::parse(args)?;
    sys::close_others(&options.numbers());
    sys::reset_signals();
    ensure_standard_streams().map_err(InitError::StandardStreams)?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let descriptors = options.take()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(InitError::Runtime)?;
    runtime.block_on(serve(descriptors))
}

async fn serve(descriptors: Descriptors) -> Result<(), InitError> {
    let listener = UnixListener::from_std(descriptors.listener).map_err(InitError::Listen)?;
    let guest = Arc::new(Guest::new(descriptors.meters, descriptors.programs));
    let mut children = signal(SignalKind::child()).map_err(InitError::Runtime)?;
    if let Some(interpreter) = &guest.interpreter {
        interpreter::open(interpreter, descriptors.forkserver).map_err(InitError::Interpreter)?;
    }
    if let Some(ready) = descriptors.ready {
        // If the write fails, the host sees the end of the pipe instead.
        let _ = rustix::io::write(&ready, b"1");
    }
    let processes = Arc::clone(&guest.processes);
    tokio::spawn(async move {
        loop {
            processes.reap();
            if children.recv().await.is_none() {
                return;
            }
        }
    });
    server::accept(listener, guest).await;
    Ok(())
}

/// Opens 0, 1 and 2 if they are closed. Otherwise a pipe for a child could get one of these numbers.
fn ensure_standard_streams() -> io::Result<()> {
    loop {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        std::mem::forget(null);
    }
}

#[derive(Debug, Default)]
struct Options {
    listen_fd: Option<i32>,
    listen_path: Option<PathBuf>,
    ready_fd: Option<i32>,
    memory_fd: Option<i32>,
    cpu_fd: Option<i32>,
    memory_stat_fd: Option<i32>,
    /// Whether this sandbox has a code interpreter.
    interpreter: bool,
    forkserver_fd: Option<i32>,
    programs: interpreter::Programs,
}

struct Descriptors {
    listener: StdListener,
    ready: Option<OwnedFd>,
    meters: Meters,
    /// None without an interpreter.
    programs: Option<interpreter::Programs>,
    /// The socket to a forkserver that the host starts.
    forkserver: Option<OwnedFd>,
}

impl Options {
    fn parse(args: &[OsString]) -> Result<Self, InitError> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if name == "--interpreter" {
                options.interpreter = true;
                continue;
            }
            let value = args.next().ok_or_else(|| InitError::Usage(format!("{} needs a value", name.display())))?;
            let number = || {
                let parsed = value.to_str().and_then(|text| text.parse().ok());
                parsed.ok_or_else(|| InitError::Usage(format!("{}: not a number: {}", name.display(), value.display())))
            };
            match name.to_str() {
                Some("--listen-fd") => options.listen_fd = Some(number()?),
                Some("--listen-path") => options.listen_path = Some(PathBuf::from(value)),
                Some("--ready-fd") => options.ready_fd = Some(number()?),
                Some("--memory-fd") => options.memory_fd = Some(number()?),
                Some("--cpu-fd") => options.cpu_fd = Some(number()?),
                Some("--memory-stat-fd") => options.memory_stat_fd = Some(number()?),
                // The spawner of an earlier server may start this guest: the flag keeps its first name.
                Some("--mother-fd") => options.forkserver_fd = Some(number()?),
                Some("--python") => options.programs.python = PathBuf::from(value),
                Some("--driver") => options.programs.driver = PathBuf::from(value),
                _ => return Err(InitError::Usage(format!("unknown option {}", name.display()))),
            }
        }
        if options.forkserver_fd.is_some() && !options.interpreter {
            return Err(InitError::Usage("--mother-fd needs --interpreter".to_owned()));
        }
        match (options.listen_fd, &options.listen_path) {
            (Some(_), None) | (None, Some(_)) => Ok(options),
            _ => Err(InitError::Usage("pass either --listen-fd or --listen-path".to_owned())),
        }
    }

    fn numbers(&self) -> Vec<i32> {
        let all = [self.listen_fd, self.ready_fd, self.memory_fd, self.cpu_fd, self.memory_stat_fd, self.forkserver_fd];
        all.into_iter().flatten().collect()
    }

    /// Takes over the descriptors. Refuses a number that is given twice.
    fn take(self) -> Result<Descriptors, InitError> {
        let mut numbers = self.numbers();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(InitError::Usage("the same descriptor is given twice".to_owned()));
        }
        let take = |option, number: Option<i32>| {
            let taken = number
                .map(|number| sys::take_fd(number).map_err(|source| InitError::Descriptor { option, number, source }));
            taken.transpose()
        };
        let listener = match (take("--listen-fd", self.listen_fd)?, self.listen_path) {
            (Some(fd), _) => StdListener::from(fd),
            (None, Some(path)) => StdListener::bind(path).map_err(InitError::Listen)?,
            (None, None) => return Err(InitError::Usage("no socket to listen on".to_owned())),
        };
        listener.set_nonblocking(true).map_err(InitError::Listen)?;
        Ok(Descriptors {
            listener,
            ready: take("--ready-fd", self.ready_fd)?,
            meters: Meters::new(
                take("--memory-fd", self.memory_fd)?,
                take("--memory-stat-fd", self.memory_stat_fd)?,
                take("--cpu-fd", self.cpu_fd)?,
            ),
            forkserver: take("--mother-fd", self.forkserver_fd)?,
            programs: self.interpreter.then_some(self.programs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, InitError> {
        Options::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn one_socket_is_needed() {
        assert!(parse(&[]).is_err());
        assert!(parse(&["--listen-fd", "3", "--listen-path", "/x"]).is_err());
        assert!(parse(&["--listen-fd", "x"]).is_err());
        assert!(parse(&["--listen-fd"]).is_err());
        assert!(parse(&["--what", "3"]).is_err());
        assert!(parse(&["--listen-fd", "3", "--mother-fd", "4"]).is_err());
        let options = parse(&["--interpreter", "--listen-fd", "3", "--mother-fd", "4"]).unwrap();
        assert!(options.interpreter && options.numbers() == [3, 4]);
        assert_eq!(parse(&["--listen-fd", "3", "--ready-fd", "4"]).unwrap().numbers(), [3, 4]);
    }
}
