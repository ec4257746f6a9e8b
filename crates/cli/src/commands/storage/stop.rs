//! `isopod storage stop`: uploads what is left and ends the daemon; and what a server says that leaves one behind.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use isopod_storage::{ClientError, FailureKind, StorageClient, StorageStatus};

use super::{Storage, Verb, explain};
use crate::printable::printable;

/// The kernel takes the mounts of a sandbox that has just ended away a moment later.
const ENDING: Duration = Duration::from_secs(3);
/// How long one wait for uploads takes before it is said what is left.
const PIECE: Duration = Duration::from_secs(5);

pub(super) fn run(verb: &Verb<'_>, force: bool, timeout: Duration) -> anyhow::Result<ExitCode> {
    let client = verb.running();
    let stopped = match force {
        true => client.stop(),
        false => stop_politely(&client, timeout),
    };
    match stopped {
        Err(ClientError::NotRunning) => say!("the storage daemon does not run"),
        other => {
            other.map_err(explain)?;
            say!("the storage daemon has ended");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks first, so that nobody waits for uploads only to hear that something uses it.
fn stop_politely(client: &StorageClient, timeout: Duration) -> Result<(), ClientError> {
    match stop_unused(client) {
        Err(ClientError::Refused { kind: FailureKind::NotUploaded, .. }) => {}
        done => return done,
    }
    drain(client, timeout)?;
    stop_unused(client)
}

fn stop_unused(client: &StorageClient) -> Result<(), ClientError> {
    let deadline = Instant::now() + ENDING;
    loop {
        match client.stop_unused() {
            Err(ClientError::Refused { kind: FailureKind::InUse, .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(100));
            }
            done => return done,
        }
    }
}

/// Until the store has everything, or the time is over.
fn drain(client: &StorageClient, timeout: Duration) -> Result<(), ClientError> {
    let deadline = Instant::now() + timeout;
    let mut left = client.status()?;
    while is_waiting(&left) {
        say!("still to be uploaded: {}", waiting(&left));
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Ok(());
        }
        left = client.settle_for(rest.min(PIECE))?;
    }
    Ok(())
}

/// The daemon outlives the server, for the sandboxes that do: whoever stops the server should know.
pub(crate) fn print_what_stays(storage: &Storage) {
    let Ok(status) = storage.client().status() else { return };
    let sandboxes = status.mounts.iter().filter(|mount| mount.owner.is_some()).count();
    say!(
        "The storage daemon keeps running (process {}), with its mount on {}.",
        status.pid,
        storage.client().root().display()
    );
    if sandboxes > 0 {
        say!("  Mounts of running sandboxes: {sandboxes}.");
    }
    if is_waiting(&status) {
        say!("  Still to be uploaded: {}.", waiting(&status));
    }
    say!(
        "  It ends by itself {} seconds after its last use. To end it now: isopod storage stop",
        status.idle_exit.as_secs()
    );
}

fn is_waiting(status: &StorageStatus) -> bool {
    status.sync.uploads + status.sync.deletions > 0
}

fn waiting(status: &StorageStatus) -> String {
    let sync = &status.sync;
    let because =
        sync.error.as_ref().map(|error| format!(" (the last try failed: {})", printable(error))).unwrap_or_default();
    format!("{} uploads with {} bytes, {} deletions{because}", sync.uploads, sync.bytes, sync.deletions)
}
