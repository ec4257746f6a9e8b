//! Runs the start command of a template, before its sandbox gets an owner.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use isopod_guest_client::guest::{Ended, Event, Guest, GuestError, Process, StartProcess};
use isopod_wire::INTERPRETER_PORT;
use isopod_wire::build::BuiltTemplate;

use crate::guest_request;
use crate::provision::{ProvisionError, Provisioner, ReadySandbox};

/// How long a template may take to become ready when it is built, as in E2B.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a create waits for the start command. Then the sandbox is returned as it is.
pub(crate) const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Without a ready command: how long to wait until something listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(20);
/// The first and the longest pause between two checks.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The limit on one run of the ready command.
const TRY_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a socket table is read.
const MAX_TABLE: u64 = 1 << 20;

/// Why a start command is not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("could not connect to the guest")]
    Init(#[source] io::Error),
    #[error("could not run the start command")]
    Start(#[source] GuestError),
    #[error("could not run the ready command")]
    Ready(#[source] GuestError),
    #[error("the start command ended with exit code {0} before it was ready")]
    Ended(i32),
    #[error("it was not ready within {0} s")]
    NotReady(u64),
}

/// Runs the start command and waits until it is ready. `init` is the sandbox's first process. Whatever the guest does,
/// this ends after the timeout plus one run of the ready command.
pub(crate) async fn bring_up(
    guest: &Guest,
    init: u32,
    template: &BuiltTemplate,
    environment: &BTreeMap<String, String>,
    timeout: Duration,
) -> Result<(), StartError> {
    let up = start_and_wait(guest, init, template, environment, timeout);
    let late = |_| StartError::NotReady(timeout.as_secs());
    tokio::time::timeout(timeout + TRY_TIMEOUT, up).await.map_err(late)?
}

/// Gives the guest settings that are nobody's. It serves no requests before it has some, and the owner's replace these later.
pub(crate) async fn set_up_without_owner(directory: &File, template: &BuiltTemplate) -> Result<(), StartError> {
    let settings = serde_json::json!({ "envVars": {}, "defaultUser": template.user });
    guest_request::post(directory, "/init", &settings).await.map_err(StartError::Init)
}

async fn start_and_wait(
    guest: &Guest,
    init: u32,
    template: &BuiltTemplate,
    environment: &BTreeMap<String, String>,
    timeout: Duration,
) -> Result<(), StartError> {
    let shell = |line: &str| {
        let mut start = StartProcess::shell(line).user(template.user.as_str()).cwd(template.workdir.as_str());
        start.envs =
            environment.iter().chain(&template.env).map(|(name, value)| (name.clone(), value.clone())).collect();
        start
    };
    let mut running = match &template.start_cmd {
        Some(command) => Some(guest.start(shell(command)).await.map_err(StartError::Start)?),
        None => None,
    };
    let deadline = Instant::now() + timeout;
    match (&template.ready_cmd, &mut running) {
        (Some(command), running) => wait_until_ready(guest, || shell(command), running, deadline, timeout).await,
        (None, Some(running)) => wait_until_it_listens(init, running, timeout).await,
        (None, None) => Ok(()),
    }
}

impl Provisioner {
    /// Starts what a sandbox that has no owner yet starts with: its start image, or the start command of its template. Blocks,
    /// so call it on a blocking thread of a Tokio runtime.
    ///
    /// # Errors If the image cannot be restored. Neither it nor the sandbox can then be used.
    pub(crate) fn start(&self, ready: &ReadySandbox, timeout: Duration) -> Result<(), ProvisionError> {
        match &ready.image {
            Some(image) => self.restore_start_image(ready, image),
            None => {
                self.run_start_command(ready, timeout);
                Ok(())
            }
        }
    }

    /// Runs the start command of a template in a sandbox that has no owner yet. If it fails, that is logged, and the
    /// sandbox is used anyway, so that its owner can see why. Blocks, so call it on a blocking thread of a Tokio
    /// runtime.
    pub(crate) fn run_start_command(&self, ready: &ReadySandbox, timeout: Duration) {
        let Some(manifest) = ready.template.manifest() else { return };
        let template = &manifest.template;
        if template.start_cmd.is_none() && template.ready_cmd.is_none() {
            return;
        }
        let (Some(init), Ok(directory)) = (&ready.record.init, File::open(&ready.directory)) else { return };
        let Ok(guest) = guest_request::client(&directory) else { return };
        let environment = self.environment_for(manifest.on_host);
        let up = async {
            set_up_without_owner(&directory, template).await?;
            bring_up(&guest, init.pid, template, &environment, timeout).await
        };
        if let Err(error) = tokio::runtime::Handle::current().block_on(up) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, template = template.id, "the start command of a sandbox is not ready");
        }
    }
}

async fn wait_until_ready(
    guest: &Guest,
    ready: impl Fn() -> StartProcess,
    running: &mut Option<Process>,
    deadline: Instant,
    timeout: Duration,
) -> Result<(), StartError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let attempt = run_quietly(guest, ready().timeout(TRY_TIMEOUT.min(timeout))).await;
        match attempt {
            Ok(ended) if ended.is_success() => return Ok(()),
            Ok(_) | Err(GuestError::Refused { .. }) => {}
            Err(error) => return Err(StartError::Ready(error)),
        }
        if let Some(process) = running
            && let Some(code) = failed_within(process, pause).await
        {
            return Err(StartError::Ended(code));
        } else if running.is_none() {
            tokio::time::sleep(pause).await;
        }
        if Instant::now() > deadline {
            return Err(StartError::NotReady(timeout.as_secs()));
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Runs a command to its end and discards its output, however long it is.
async fn run_quietly(guest: &Guest, command: StartProcess) -> Result<Ended, GuestError> {
    Ok(guest.start(command).await?.collect_up_to(0).await?.ended)
}

/// Waits for a start command that has no ready command. A server is ready when it listens. Anything else gets some
/// time.
async fn wait_until_it_listens(init: u32, running: &mut Process, timeout: Duration) -> Result<(), StartError> {
    let deadline = Instant::now() + LISTEN_TIMEOUT.min(timeout);
    let mut pause = FIRST_PAUSE;
    while Instant::now() < deadline && !something_listens(init) {
        match wait_for_end(running, pause).await {
            None => {}
            // It has finished successfully.
            Some(0) => return Ok(()),
            Some(code) => return Err(StartError::Ended(code)),
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
    Ok(())
}

/// The exit code, if it failed. A start command that exits with 0 has started something in the background.
async fn failed_within(process: &mut Process, limit: Duration) -> Option<i32> {
    wait_for_end(process, limit).await.filter(|code| *code != 0)
}

/// Waits and reads the output in the meantime. Returns `None` while the process runs, and if its end was already
/// reported.
async fn wait_for_end(process: &mut Process, limit: Duration) -> Option<i32> {
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        match tokio::time::timeout_at(deadline, process.next()).await {
            Ok(Ok(Some(Event::End(ended)))) => return Some(ended.exit_code),
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None) | Err(_)) => {
                tokio::time::sleep_until(deadline).await;
                return None;
            }
            Err(_) => return None,
        }
    }
}

/// Whether a TCP port other than the interpreter's is open in the network namespace of this process.
fn something_listens(init: u32) -> bool {
    ["tcp", "tcp6"].iter().any(|name| has_listener(&beginning_of(format!("/proc/{init}/net/{name}"))))
}

/// Reads the beginning of a socket table. The kernel lists listeners first, and a sandbox may have very many
/// connections.
fn beginning_of(table: String) -> String {
    let mut bytes = Vec::new();
    // Without a table, nothing listens.
    let _ = File::open(table).and_then(|table| table.take(MAX_TABLE).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn has_listener(table: &str) -> bool {
    const LISTENING: &str = "0A";
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        let port = fields.nth(1).and_then(|address| address.rsplit_once(':')).map(|(_, port)| port);
        let state = fields.nth(1);
        state == Some(LISTENING) && port.is_some_and(|port| u16::from_str_radix(port, 16) != Ok(INTERPRETER_PORT))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_from_a_connection_and_from_the_interpreter() {
        let head = "  sl  local_address rem_address   st\n";
        assert!(has_listener(&format!("{head}   0: 00000000:0BB8 00000000:0000 0A 00000000:00000000\n")));
        assert!(!has_listener(&format!("{head}   0: 0100007F:0BB8 0100007F:1234 01 00000000:00000000\n")));
        assert!(!has_listener(&format!("{head}   0: 00000000:C34F 00000000:0000 0A 00000000:00000000\n")));
        assert!(!has_listener(""));
    }

    #[test]
    fn only_the_beginning_of_a_long_table_is_read() {
        let line = |port: &str, state: &str| format!("   0: 00000000:{port} 00000000:0000 {state} 00000000:00000000\n");
        let connections = line("0BB8", "01").repeat(60_000);
        let read = |text: String| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            beginning_of(file.path().to_str().unwrap().to_owned())
        };
        let last = read(format!("head\n{connections}{}", line("0BB8", "0A")));
        assert_eq!(last.len() as u64, MAX_TABLE);
        assert!(!has_listener(&last));
        assert!(has_listener(&read(format!("head\n{}{connections}", line("0BB8", "0A")))));
        assert_eq!(beginning_of("/proc/0/net/tcp".to_owned()), "");
    }
}
