//! Following a command inside a sandbox: output out, input and signals in, and its end as our own.

mod output;
mod terminal;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use isopod_client::guest::{Ended, Event, Guest, GuestError, ProcessHandle, PtySize, Signal, StartProcess};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

pub(super) use output::Report;
use terminal::RawTerminal;
pub(super) use terminal::{is_terminal, terminal_size};

/// What `timeout(1)` gives.
const TIMED_OUT: u8 = 124;

/// Runs it to its end and gives its exit code.
pub(super) async fn follow(
    guest: &Guest,
    start: StartProcess,
    timeout: Option<Duration>,
    tty: bool,
    mut report: Report,
) -> anyhow::Result<ExitCode> {
    // Before anything is started: without a terminal nothing shall be left running.
    let _raw = tty.then(RawTerminal::enter).transpose().context("standard input is no terminal")?;
    // Before anything is started as well: whoever reads the first output may send a signal at once.
    let mut signals = Signals::listen().context("cannot take signals")?;
    let mut process = tokio::select! {
        started = guest.start(start) => started.map_err(refused)?,
        number = signals.next_end() => return Ok(ExitCode::from(128 + number)),
    };
    let handle = process.handle();
    let input = tokio::spawn(pass_input(handle.clone(), tty));
    let signals = tokio::spawn(signals.pass(handle.clone(), tty));
    let deadline = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    let mut timed_out = false;
    let ended = loop {
        tokio::select! {
            event = process.next() => match event.context("lost the sandbox")? {
                Some(Event::Stdout(bytes) | Event::Pty(bytes)) => ignore_closed(report.stdout(bytes).await)?,
                Some(Event::Stderr(bytes)) => ignore_closed(report.stderr(bytes).await)?,
                Some(Event::End(ended)) => break ended,
                Some(Event::Started(_)) => {}
                None => anyhow::bail!("the stream ended without an exit status"),
            },
            () = &mut deadline, if !timed_out => {
                timed_out = true;
                handle.signal(Signal::Kill).await.context("could not end the command")?;
            }
        }
    };
    input.abort();
    signals.abort();
    let code = if timed_out { TIMED_OUT } else { exit_code(&ended) };
    if timed_out {
        say_error!("isopod: the command was ended after {:?}", timeout.unwrap_or_default());
    }
    report.finish(code, timed_out);
    Ok(ExitCode::from(code))
}

/// A reader that went away (`isopod run … | head`) is no reason to stop the command from ending properly.
fn ignore_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn refused(error: GuestError) -> anyhow::Error {
    match error {
        GuestError::Refused { message, .. } => anyhow::anyhow!("{message}"),
        other => other.into(),
    }
}

/// As a shell would say it: 128 and the number of the signal.
fn exit_code(ended: &Ended) -> u8 {
    if ended.exited {
        return u8::try_from(ended.exit_code & 0xff).unwrap_or(1);
    }
    let name = ended.status.strip_prefix("signal: ").unwrap_or_default();
    let numbers = [
        ("hangup", 1),
        ("interrupt", 2),
        ("quit", 3),
        ("aborted", 6),
        ("killed", 9),
        ("segmentation fault", 11),
        ("broken pipe", 13),
        ("terminated", 15),
    ];
    let number = numbers.iter().find(|(known, _)| name.starts_with(known)).map_or(9, |(_, number)| *number);
    128 + number
}

async fn pass_input(handle: ProcessHandle, tty: bool) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 32 << 10];
    loop {
        let sent = match stdin.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) if tty => handle.send_pty(Bytes::copy_from_slice(&buffer[..length])).await,
            Ok(length) => handle.send_stdin(Bytes::copy_from_slice(&buffer[..length])).await,
        };
        // The command has ended or closed its input.
        if sent.is_err() {
            return;
        }
    }
    if !tty {
        let _ = handle.close_stdin().await;
    }
}

/// Signals to this process that are meant for the command.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    resized: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    /// Waits until somebody wants an end, and gives the number of the signal.
    async fn next_end(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
        }
    }

    async fn pass(mut self, handle: ProcessHandle, tty: bool) {
        let mut asked = 0;
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => asked += 1,
                _ = self.terminate.recv() => asked += 1,
                _ = self.resized.recv(), if tty => {
                    let PtySize { cols, rows } = terminal_size();
                    // The command may just have ended.
                    let _ = handle.resize(PtySize { cols, rows }).await;
                    continue;
                }
            }
            // Whoever asks twice means it.
            let signal = if asked > 1 { Signal::Kill } else { Signal::Term };
            let _ = handle.signal(signal).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(exit_code: i32, exited: bool, status: &str) -> Ended {
        Ended { exit_code, exited, status: status.to_owned(), error: None }
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(exit_code(&ended(0, true, "exit status 0")), 0);
        assert_eq!(exit_code(&ended(42, true, "exit status 42")), 42);
        assert_eq!(exit_code(&ended(-1, false, "signal: killed")), 137);
        assert_eq!(exit_code(&ended(-1, false, "signal: terminated")), 143);
    }
}
