//! One step: taken from an earlier build, or done on the bench and kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_client::guest::StartProcess;
use sha2::{Digest, Sha256};

use super::Builder;
use super::accounts::{find_owner, find_user};
use super::bench::Bench;
use super::cache::Found;
use super::copy::{CopyTo, Inline, copy, write_inline};
use super::log::Log;
use super::provision::provision;
use super::source::Source;
use super::stack::{Stack, hex};
use super::trouble::Trouble;
use super::view::{Owner, View};
use crate::template::Scratch;

/// What a step does to the files.
#[derive(Debug)]
pub(super) enum Action {
    /// Runs a program.
    Run(Run),
    /// Copies files.
    Copy(Copy),
    /// Makes a directory.
    Directory { path: PathBuf, owner: String },
    /// Adds what sandboxes need.
    Provision,
}

/// A program to run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: String,
    pub(super) cwd: String,
    /// A script that is put in a place of its own and run as the last argument.
    pub(super) script: Option<String>,
}

/// Files to copy.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) from: CopyFrom,
    pub(super) to: CopyTo,
    /// A name, a number, or both with a group; none leaves them to whom they belong.
    pub(super) owner: Option<String>,
}

/// Where they come from.
#[derive(Debug)]
pub(super) enum CopyFrom {
    /// Files that were found already.
    Files { source: Arc<Source>, paths: Vec<PathBuf>, inline: Vec<Inline>, _scratch: Option<Arc<Scratch>> },
    /// Another stage or image.
    Stack { stack: Box<Stack>, patterns: Vec<String>, exclude: Vec<String> },
}

/// Where a script is put: memory, so that it is not in the layer.
const SCRIPT: &str = "/dev/shm/isopod-step";

impl Builder<'_> {
    /// Takes a step: what it gave before, or what it gives now.
    pub(super) async fn step(
        &mut self,
        stack: &mut Stack,
        words: &[&str],
        force: bool,
        action: Action,
    ) -> Result<(), Trouble> {
        let key = stack.key(words);
        self.is_forced |= force;
        let turn = self.fleet.builds.take(&key).await;
        if !self.is_forced
            && let Some(found) = self.cache.find(&key)
        {
            self.log.info("CACHED").await;
            stack.push(&key, &found);
            return Ok(());
        }
        let found = self.perform(stack, &key, action).await?;
        let noted = self.cache.note(&key, &found);
        noted.map_err(|error| Trouble::internal("note what the step made", error))?;
        drop(turn);
        stack.push(&key, &found);
        if let Some(bench) = &mut self.bench {
            bench.chain.clone_from(&stack.chain);
        }
        Ok(())
    }

    /// Takes what the step gave before, if that may be used. For steps that take long to prepare.
    pub(super) async fn take_known(&mut self, stack: &mut Stack, words: &[String]) -> bool {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let key = stack.key(&words);
        let Some(found) = self.cache.find(&key).filter(|_| !self.is_forced) else { return false };
        self.log.info("CACHED").await;
        stack.push(&key, &found);
        true
    }

    async fn perform(&mut self, stack: &Stack, key: &str, action: Action) -> Result<Found, Trouble> {
        let id = self.layer_id(key);
        let log = self.log.clone();
        let from = self.open_source(&action).await?;
        let bench = self.bench_on(stack).await?;
        let acted = match action {
            Action::Run(run) => run_on(bench, run, &log).await,
            Action::Copy(copy) => copy_on(bench, copy, from.as_ref()).await,
            Action::Directory { path, owner } => make_directory(bench, path, owner).await,
            Action::Provision => provision_on(bench, &log).await,
        };
        if let Some(from) = from {
            from.close().await;
        }
        acted?;
        bench.keep(&id).await
    }

    /// The same step has the same layer, unless somebody wants it anew.
    fn layer_id(&self, key: &str) -> String {
        match self.is_forced {
            false => format!("l-{key}"),
            true => {
                let mut bytes = [0; 12];
                getrandom::fill(&mut bytes).expect("the kernel has given random numbers since boot");
                format!("l-{}", hex(&bytes))
            }
        }
    }

    /// The bench, with these files.
    async fn bench_on(&mut self, stack: &Stack) -> Result<&mut Bench, Trouble> {
        let is_right = self.bench.as_ref().is_some_and(|bench| bench.chain == stack.chain);
        if !is_right {
            self.close().await;
            self.bench = Some(Bench::open(self.fleet, stack, self.limits).await?);
        }
        Ok(self.bench.as_mut().expect("it was opened above"))
    }

    /// A sandbox to read another stage's files in.
    async fn open_source(&self, action: &Action) -> Result<Option<Bench>, Trouble> {
        match action {
            Action::Copy(Copy { from: CopyFrom::Stack { stack, .. }, .. }) => {
                Ok(Some(Bench::open(self.fleet, stack, self.limits).await?))
            }
            _ => Ok(None),
        }
    }
}

async fn run_on(bench: &Bench, run: Run, log: &Log) -> Result<(), Trouble> {
    let user = find_user(&bench.view, &run.user)?;
    let [program, arguments @ ..] = &run.command[..] else {
        return Err(Trouble::invalid("there is nothing to run"));
    };
    let mut start = StartProcess::new(program.as_str()).args(arguments.iter().cloned()).user(user.name).cwd(run.cwd);
    start.envs = run.env;
    if let Some(script) = run.script {
        let written = bench.guest.write_file(SCRIPT, script.into_bytes()).await;
        written.map_err(|error| Trouble::internal("hand the script over", error))?;
        let chmod = StartProcess::new("chmod").args(["0755", SCRIPT]).user("root");
        bench.run(chmod, log).await?;
        start = start.arg(SCRIPT);
    }
    bench.run(start, log).await
}

async fn copy_on(bench: &Bench, copying: Copy, from: Option<&Bench>) -> Result<(), Trouble> {
    let Copy { from: copied, mut to, owner } = copying;
    let view = Arc::clone(&bench.view);
    let other = from.map(|bench| Arc::clone(&bench.view));
    blocking(move || {
        to.owner = owner.map(|owner| find_owner(&view, &owner)).transpose()?;
        match copied {
            CopyFrom::Files { source, paths, inline, _scratch } => {
                copy(&source, &paths, &view, &to)?;
                write_inline(&inline, &view, &to)
            }
            CopyFrom::Stack { patterns, exclude, .. } => {
                let view_of_other = other.ok_or_else(|| Trouble::invalid("there is nothing to copy from"))?;
                copy_from_view(view_of_other, &patterns, exclude, &view, &to)
            }
        }
    })
    .await
}

fn copy_from_view(
    other: Arc<View>,
    patterns: &[String],
    exclude: Vec<String>,
    view: &View,
    to: &CopyTo,
) -> Result<(), Trouble> {
    let other = other.try_clone();
    let other = other.map_err(|error| Trouble::internal("look into the other stage", error))?;
    let source = Source { view: other, ignore: Default::default(), exclude };
    let paths = find_all(&source, patterns)?;
    copy(&source, &paths, view, to)
}

/// All that the patterns mean; each must mean something.
pub(super) fn find_all(source: &Source, patterns: &[String]) -> Result<Vec<PathBuf>, Trouble> {
    let mut paths = Vec::new();
    for pattern in patterns {
        let found = source.matches(pattern);
        let found = found.map_err(|error| Trouble::invalid(format!("could not look for {pattern}: {error}")))?;
        if found.is_empty() {
            return Err(Trouble::invalid(format!("there is no file {pattern}")));
        }
        paths.extend(found);
    }
    Ok(paths)
}

async fn make_directory(bench: &Bench, path: PathBuf, owner: String) -> Result<(), Trouble> {
    let view = Arc::clone(&bench.view);
    blocking(move || {
        let owner = find_owner(&view, &owner).unwrap_or(Owner::ROOT);
        let mut writer = view.writer().map_err(|error| Trouble::internal("write into the template", error))?;
        let made = writer.ensure_directory(&path, owner, 0o755);
        made.map(drop).map_err(|error| Trouble::step(format!("could not make {}: {error}", path.display())))
    })
    .await
}

async fn provision_on(bench: &Bench, log: &Log) -> Result<(), Trouble> {
    let view = Arc::clone(&bench.view);
    let notes =
        blocking(move || provision(&view).map_err(|error| Trouble::internal("add the sandbox's user", error))).await?;
    for note in notes {
        log.warn(note).await;
    }
    Ok(())
}

/// Work on files, on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Trouble::internal("finish the step", error)),
    }
}

/// A text that stands for several.
pub(super) fn digest_of(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.as_ref().len() as u64).to_le_bytes());
        hash.update(part.as_ref());
    }
    hex(&hash.finalize())
}

/// Whether a destination is a directory by the way it is written.
pub(super) fn names_a_directory(destination: &str) -> bool {
    destination.ends_with('/')
        || Path::new(destination).file_name().is_none()
        || matches!(destination, "." | "..")
        || destination.ends_with("/.")
        || destination.ends_with("/..")
}
