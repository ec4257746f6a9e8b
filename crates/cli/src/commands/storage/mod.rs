//! `isopod storage`: the workspace on this host.

mod choice;
mod cp;
pub(crate) mod daemon;
mod doctor;
mod du;
mod ls;
mod mount;
mod service;
mod status;
mod stop;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use isopod_storage::{ClientError, FailureKind};

use crate::args::{StorageArgs, StorageCommand, TunableArgs};
use crate::failure::Hint;
pub(crate) use choice::{Choice, directory};
pub(crate) use service::Storage;
pub(crate) use stop::print_what_stays;

/// A verb, with what all of them need.
struct Verb<'a> {
    state_dir: &'a Path,
    args: &'a StorageArgs,
}

pub(super) fn run(state_dir: &Path, args: &StorageArgs) -> anyhow::Result<ExitCode> {
    let verb = Verb { state_dir, args };
    match &args.command {
        StorageCommand::Mount(mount) => mount::mount(&verb, mount),
        StorageCommand::Umount { path } => mount::unmount(&verb, path.as_deref()),
        StorageCommand::Status { json } => status::run(&verb, *json),
        StorageCommand::Doctor(doctor) => doctor::run(&verb, doctor),
        StorageCommand::Ls { path } => ls::run(&verb, path.as_deref()),
        StorageCommand::Cp { from, to } => cp::run(&verb, from, to),
        StorageCommand::Du { path } => du::run(&verb, path.as_deref()),
        StorageCommand::Gc => collect(&verb),
        StorageCommand::Sync { wait } => sync(&verb, *wait),
        StorageCommand::Stop { force, timeout } => stop::run(&verb, *force, Duration::from_secs(*timeout)),
    }
}

impl Verb<'_> {
    fn choice(&self, tunables: &TunableArgs) -> anyhow::Result<Choice> {
        let variables: BTreeMap<String, String> = std::env::vars().collect();
        Choice::resolve(self.state_dir, &self.args.store, tunables, &variables)
    }

    /// The daemon, started if it does not run.
    fn start(&self, tunables: &TunableArgs) -> anyhow::Result<(Storage, Choice)> {
        let choice = self.choice(tunables)?;
        let storage = Storage::new(self.state_dir, &choice, None);
        storage.ensure().map_err(explain)?;
        Ok((storage, choice))
    }

    /// A daemon that runs already, whatever it serves; else the one that is meant.
    fn find(&self) -> anyhow::Result<isopod_storage::StorageClient> {
        let client = isopod_storage::StorageClient::new(directory(self.state_dir));
        match client.is_running() {
            true => client.ensure_root().map_err(explain).map(|()| client),
            false => self.start(&TunableArgs::default()).map(|(storage, _)| storage.client().clone()),
        }
    }

    fn running(&self) -> isopod_storage::StorageClient {
        isopod_storage::StorageClient::new(directory(self.state_dir))
    }

    /// A place in the workspace, by its path from the top.
    fn place(&self, path: &str) -> anyhow::Result<PathBuf> {
        let root = self.find()?.root();
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(root, |at, part| match part {
            "." | ".." => Err(Hint::new(format!("{path:?} is no path of the workspace"), "leave out '.' and '..'")),
            part => Ok(at.join(part)),
        })
    }
}

fn collect(verb: &Verb<'_>) -> anyhow::Result<ExitCode> {
    let collected = verb.find()?.collect().map_err(explain)?;
    say!("gave up {} MiB of local copies and {} unfinished uploads", collected.bytes >> 20, collected.uploads);
    Ok(ExitCode::SUCCESS)
}

fn sync(verb: &Verb<'_>, wait: bool) -> anyhow::Result<ExitCode> {
    let client = verb.running();
    let waiting = move || client.settle().map_err(explain);
    if wait {
        waiting()?;
        say!("the bucket has everything");
        return Ok(ExitCode::SUCCESS);
    }
    let status = verb.running().status().map_err(explain)?;
    say!("{} to be uploaded, {} to be deleted", status.sync.uploads, status.sync.deletions);
    Ok(ExitCode::SUCCESS)
}

/// Each kind of trouble with its own advice.
pub(crate) fn explain(error: ClientError) -> anyhow::Error {
    let hint = match &error {
        ClientError::NotRunning => "start it with: isopod storage mount",
        ClientError::Refused { kind, .. } => advice(*kind),
        ClientError::Start(_) | ClientError::Talk(_) => "its log is storage/daemon.log in the state directory",
        ClientError::Version => "then try again",
    };
    Hint::because("the workspace cannot be used", error, hint)
}

fn advice(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::NoBucket => "make the bucket, or correct its name (ROMA_S3_BUCKET, S3_BUCKET_NAME or --storage)",
        FailureKind::Denied => "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what the keys may do",
        FailureKind::WrongRegion => "set AWS_REGION or --region to the region of the bucket",
        FailureKind::Unreachable => "check the network and AWS_ENDPOINT_URL",
        FailureKind::OtherStore => "one daemon serves one workspace: isopod storage stop ends it",
        FailureKind::NotOpen => "isopod storage mount opens one",
        FailureKind::Mount => "isopod storage status shows what is mounted where",
        FailureKind::InUse => "stop what uses it first; --force ends it all the same, and whatever uses it gets errors",
        FailureKind::NotUploaded => {
            "wait longer with --timeout, or add --force: what is left is kept and uploaded after the next start"
        }
        FailureKind::Other => "its log is storage/daemon.log in the state directory",
    }
}
