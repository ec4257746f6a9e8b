//! Executes one step: takes its result from the cache, or runs it in a sandbox and commits the changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_guest_client::guest::StartProcess;
use isopod_image::dockerfile::Patterns;
use isopod_image::unpack::Quota;
use sha2::{Digest, Sha256};

use super::Build;
use super::accounts::{find_owner, find_user};
use super::build_sandbox::BuildSandbox;
use super::cache::Found;
use super::copy::{CopyTo, Inline, copy, write_inline};
use super::ensure_user::ensure_user;
use super::image_setup::set_up_image;
use super::log::Log;
use super::source::Source;
use super::stack::Stack;
use super::step_error::StepError;
use super::view::{FileOwner, View};
use crate::template::Scratch;

/// What a step does to the files.
#[derive(Debug)]
pub(super) enum Action {
    Run(Run),
    Copy(Copy),
    Directory {
        path: PathBuf,
        owner: String,
    },
    /// Adds a user if it is missing.
    User {
        name: String,
        can_sudo: bool,
    },
    /// Adds what sandboxes need to an image.
    SetUpImage,
}

/// A program to run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: String,
    pub(super) cwd: String,
    /// Whether it is a step of E2B's SDKs, whose errors must have E2B's wording.
    pub(super) is_sdk: bool,
    /// A script to store in a file. The path of that file becomes the last argument.
    pub(super) script: Option<String>,
}

/// Files to copy.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) from: CopyFrom,
    pub(super) to: CopyTo,
    /// A name or a number, optionally with a group. `None` keeps the owners.
    pub(super) owner: Option<String>,
}

#[derive(Debug)]
pub(super) enum CopyFrom {
    /// Files that have already been found.
    Files { source: Arc<Source>, paths: Vec<PathBuf>, inline: Vec<Inline>, _scratch: Option<Arc<Scratch>> },
    /// Another stage or image.
    Stack { stack: Box<Stack>, patterns: Vec<String>, exclude: Vec<String> },
}

/// The path of the script. It is in memory, so that it does not become part of the layer.
const SCRIPT: &str = "/dev/shm/isopod-step";

impl Build<'_> {
    /// Executes a step, or takes its result from the cache.
    pub(super) async fn step(
        &mut self,
        stack: &mut Stack,
        words: &[&str],
        force: bool,
        action: Action,
    ) -> Result<(), StepError> {
        let key = self.key_of(stack, words);
        self.is_forced |= force;
        let turn = self.shared.locks.take(&key).await;
        if !self.is_forced
            && let Some(found) = self.cache.find(&key)
        {
            self.log.info("CACHED").await;
            stack.push(&key, &found);
            return Ok(());
        }
        let found = self.perform(stack, &key, action).await?;
        let stored = self.cache.store(&key, &found);
        stored.map_err(|error| StepError::internal("store the result of the step", error))?;
        drop(turn);
        stack.push(&key, &found);
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.chain.clone_from(&stack.chain);
        }
        Ok(())
    }

    /// Takes the result of a step from the cache, if allowed. For steps that are expensive to prepare.
    pub(super) async fn take_cached(&mut self, stack: &mut Stack, words: &[String]) -> bool {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let key = self.key_of(stack, &words);
        let Some(found) = self.cache.find(&key).filter(|_| !self.is_forced) else { return false };
        self.log.info("CACHED").await;
        stack.push(&key, &found);
        true
    }

    /// The cache key of a step. It includes the scope: one team must not get what a program made for another, such as a
    /// private key.
    fn key_of(&self, stack: &Stack, words: &[&str]) -> String {
        match &self.spec.cache_scope {
            Some(scope) => stack.key(&[&["scope", scope], words].concat()),
            None => stack.key(words),
        }
    }

    async fn perform(&mut self, stack: &Stack, key: &str, action: Action) -> Result<Found, StepError> {
        let id = self.layer_id(key);
        let log = self.log.clone();
        let from = self.open_source(&action).await?;
        let sandbox = self.sandbox_on(stack).await?;
        let acted = match action {
            Action::Run(run) => run_on(sandbox, run, &log).await,
            Action::Copy(copy) => copy_on(sandbox, copy, from.as_ref()).await,
            Action::Directory { path, owner } => make_directory(sandbox, path, owner).await,
            Action::User { name, can_sudo } => ensure_user_on(sandbox, name, can_sudo).await,
            Action::SetUpImage => set_up_image_on(sandbox, &log).await,
        };
        if let Some(from) = from {
            from.close().await;
        }
        acted?;
        sandbox.commit(&id).await
    }

    /// The id of the layer. The same step gives the same layer, unless the step is forced.
    fn layer_id(&self, key: &str) -> String {
        match self.is_forced {
            false => format!("l-{key}"),
            true => {
                let mut bytes = [0; 12];
                getrandom::fill(&mut bytes).expect("the kernel provides random numbers after boot");
                format!("l-{}", hex::encode(bytes))
            }
        }
    }

    /// The build's sandbox. It is replaced if it does not have these files.
    async fn sandbox_on(&mut self, stack: &Stack) -> Result<&mut BuildSandbox, StepError> {
        let is_right = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.chain == stack.chain);
        if !is_right {
            self.close().await;
            self.sandbox = Some(BuildSandbox::open(self.sandboxes, stack, self.limits, &self.work).await?);
        }
        Ok(self.sandbox.as_mut().expect("it was opened above"))
    }

    /// Starts a sandbox to read the files of another stage.
    async fn open_source(&self, action: &Action) -> Result<Option<BuildSandbox>, StepError> {
        match action {
            Action::Copy(Copy { from: CopyFrom::Stack { stack, .. }, .. }) => {
                Ok(Some(BuildSandbox::open(self.sandboxes, stack, self.limits, &self.work).await?))
            }
            _ => Ok(None),
        }
    }
}

async fn run_on(sandbox: &BuildSandbox, run: Run, log: &Log) -> Result<(), StepError> {
    let user = match (find_user(&sandbox.view, &run.user), run.is_sdk) {
        // As E2B's guest refuses the command.
        (Err(_), true) => {
            let message = format!("command failed: unauthenticated: invalid username: '{}'", run.user);
            return Err(StepError::invalid(message));
        }
        (found, _) => found?,
    };
    let [program, arguments @ ..] = &run.command[..] else {
        return Err(StepError::invalid("there is nothing to run"));
    };
    let mut start = StartProcess::new(program.as_str()).args(arguments.iter().cloned()).user(user.name).cwd(run.cwd);
    start.envs = run.env;
    if let Some(script) = run.script {
        let written = sandbox.guest.write_file(SCRIPT, script.into_bytes()).await;
        written.map_err(|error| StepError::internal("write the script", error))?;
        let chmod = StartProcess::new("chmod").args(["0755", SCRIPT]).user("root");
        sandbox.run(chmod, log).await?;
        start = start.arg(SCRIPT);
    }
    sandbox.run(start, log).await
}

async fn copy_on(sandbox: &BuildSandbox, copying: Copy, other: Option<&BuildSandbox>) -> Result<(), StepError> {
    let Copy { from, mut to, owner } = copying;
    let view = Arc::clone(&sandbox.view);
    let other = other.map(|sandbox| Arc::clone(&sandbox.view));
    let quota = sandbox.quota();
    let copied = move || {
        to.owner = owner.map(|owner| find_owner(&view, &owner)).transpose()?;
        match from {
            CopyFrom::Files { source, paths, inline, _scratch } => {
                copy(&source, &paths, &view, &to, &quota)?;
                write_inline(&inline, &view, &to)
            }
            CopyFrom::Stack { patterns, exclude, .. } => {
                let view_of_other = other.ok_or_else(|| StepError::invalid("there is nothing to copy from"))?;
                copy_from_view(view_of_other, &patterns, &exclude, &view, &to, &quota)
            }
        }
    };
    sandbox.work.run(copied).await
}

fn copy_from_view(
    other: Arc<View>,
    patterns: &[String],
    exclude: &[String],
    view: &View,
    to: &CopyTo,
    quota: &Quota,
) -> Result<(), StepError> {
    let other = other.try_clone();
    let other = other.map_err(|error| StepError::internal("open the other stage", error))?;
    let source = Source { exclude: excluded(exclude)?, ..Source::of(other) };
    let paths = find_all(&source, patterns, quota)?;
    copy(&source, &paths, view, to, quota)
}

/// Parses the patterns of `--exclude`.
pub(super) fn excluded(patterns: &[String]) -> Result<Patterns, StepError> {
    Patterns::parse(patterns).map_err(|error| StepError::invalid(format!("--exclude: {error}")))
}

/// The paths that the patterns match. A pattern without a match is an error.
pub(super) fn find_all(source: &Source, patterns: &[String], quota: &Quota) -> Result<Vec<PathBuf>, StepError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        let found = source.matches(pattern, quota);
        let found = found.map_err(|error| StepError::invalid(format!("could not search for {pattern}: {error}")))?;
        if found.is_empty() {
            return Err(StepError::invalid(format!("there is no file {pattern}")));
        }
        paths.extend(found);
    }
    Ok(paths)
}

async fn make_directory(sandbox: &BuildSandbox, path: PathBuf, owner: String) -> Result<(), StepError> {
    let view = Arc::clone(&sandbox.view);
    let made = move || {
        let owner = find_owner(&view, &owner).unwrap_or(FileOwner::ROOT);
        let mut writer = view.writer().map_err(|error| StepError::internal("write into the template", error))?;
        let made = writer.ensure_directory(&path, owner, 0o755);
        made.map(drop).map_err(|error| StepError::step(format!("could not create {}: {error}", path.display())))
    };
    sandbox.work.run(made).await
}

async fn ensure_user_on(sandbox: &BuildSandbox, name: String, can_sudo: bool) -> Result<(), StepError> {
    let view = Arc::clone(&sandbox.view);
    sandbox.work.run(move || ensure_user(&view, &name, can_sudo)).await
}

async fn set_up_image_on(sandbox: &BuildSandbox, log: &Log) -> Result<(), StepError> {
    let view = Arc::clone(&sandbox.view);
    let set_up = move || set_up_image(&view).map_err(|error| StepError::internal("add the sandbox's user", error));
    let notes = sandbox.work.run(set_up).await?;
    for note in notes {
        log.warn(note).await;
    }
    Ok(())
}

/// A digest of several parts.
pub(super) fn digest_of(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.as_ref().len() as u64).to_le_bytes());
        hash.update(part.as_ref());
    }
    hex::encode(hash.finalize())
}

/// Whether a destination is a directory by its syntax.
pub(super) fn names_a_directory(destination: &str) -> bool {
    destination.ends_with('/')
        || Path::new(destination).file_name().is_none()
        || matches!(destination, "." | "..")
        || destination.ends_with("/.")
        || destination.ends_with("/..")
}
