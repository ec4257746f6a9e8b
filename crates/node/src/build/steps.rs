//! Builds the steps of the SDK.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use isopod_image::unpack::{Bounds, Kind, decompress, unpack_within};
use isopod_wire::build::{BuildFrom, BuildInstruction, BuildPhase, BuildStep};

use super::Build;
use super::copy::{COPY, CopyTo};
use super::source::{Source, TopLinks, fixed_part};
use super::stack::{Settings, Stack};
use super::step::{Action, Copy, CopyFrom, Run, names_a_directory};
use super::step_error::{StepError, chain};
use super::view::View;
use crate::template::Scratch;

/// The default user and working directory of steps.
const USER: &str = "user";
const HOME: &str = "/home/user";

impl Build<'_> {
    pub(super) async fn build_steps(
        &mut self,
        from: &BuildFrom,
        steps: &[BuildStep],
    ) -> Result<(Stack, Settings), StepError> {
        self.enter(BuildPhase::Base, None);
        let (mut stack, mut settings) = match from {
            BuildFrom::Image { reference, auth } => {
                let (mut stack, mut settings) = self.image(reference, auth.as_ref()).await?;
                self.set_up_image(&mut stack).await?;
                settings.user = USER.to_owned();
                settings.workdir = HOME.to_owned();
                (stack, settings)
            }
            BuildFrom::Template(name) => self.template(name).await?,
        };
        for (index, step) in steps.iter().enumerate() {
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            self.enter(BuildPhase::Step(number), None);
            self.log.info(format!("[{number}/{}] {}", steps.len(), describe(&step.instruction))).await;
            self.sdk_step(&mut stack, &mut settings, step).await?;
        }
        Ok((stack, settings))
    }

    async fn sdk_step(
        &mut self,
        stack: &mut Stack,
        settings: &mut Settings,
        step: &BuildStep,
    ) -> Result<(), StepError> {
        match &step.instruction {
            BuildInstruction::Run { command, user } => {
                let run = Run {
                    command: ["/bin/bash", "-l", "-c", command].map(str::to_owned).to_vec(),
                    env: settings.env.clone(),
                    user: user.clone().unwrap_or_else(|| settings.user.clone()),
                    cwd: settings.workdir.clone(),
                    is_sdk: true,
                    script: None,
                };
                let ran = self.run(stack, run, step.force).await;
                // The wording of E2B's builder, which programs match on.
                ran.map_err(|error| error.within(&format!("failed to run command '{}'", shortened(command))))
            }
            BuildInstruction::Copy { source, destination, owner, mode, archive } => {
                let owner = owner.clone().unwrap_or_else(|| settings.user.clone());
                let to = CopyTo {
                    destination: settings.resolve(destination).into(),
                    is_directory: names_a_directory(destination),
                    owner: None,
                    mode: *mode,
                    with_parents: false,
                };
                self.copy_archive(stack, source, archive, to, owner, step.force).await
            }
            BuildInstruction::Env(pairs) => {
                self.is_forced |= step.force;
                settings.env.extend(pairs.iter().cloned());
                Ok(())
            }
            BuildInstruction::Workdir(path) => {
                let path = settings.resolve(path);
                settings.workdir.clone_from(&path);
                self.make_directory(stack, &path, &settings.user, step.force).await
            }
            BuildInstruction::User { name, can_sudo } => {
                settings.user.clone_from(name);
                self.ensure_user(stack, name, *can_sudo, step.force).await
            }
        }
    }

    /// Runs a program. The key covers everything that can change its result.
    pub(super) async fn run(&mut self, stack: &mut Stack, run: Run, force: bool) -> Result<(), StepError> {
        let env: Vec<String> = run.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut words = vec!["RUN", &run.user, &run.cwd, run.script.as_deref().unwrap_or("")];
        words.extend(run.command.iter().chain(&env).map(String::as_str));
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.step(stack, &words, force, Action::Run(run)).await
    }

    /// Creates a working directory.
    pub(super) async fn make_directory(
        &mut self,
        stack: &mut Stack,
        path: &str,
        owner: &str,
        force: bool,
    ) -> Result<(), StepError> {
        let action = Action::Directory { path: path.into(), owner: owner.to_owned() };
        self.step(stack, &["WORKDIR", path, owner], force, action).await
    }

    /// Adds the user of a step if it is missing, as E2B's builder does.
    async fn ensure_user(
        &mut self,
        stack: &mut Stack,
        name: &str,
        can_sudo: bool,
        force: bool,
    ) -> Result<(), StepError> {
        if name == "root" || (name == USER && !can_sudo) {
            // Every template has them. This saves the sandbox of a step that changes nothing.
            self.is_forced |= force;
            return Ok(());
        }
        let rights = if can_sudo { "sudo" } else { "" };
        let action = Action::User { name: name.to_owned(), can_sudo };
        let added = self.step(stack, &["USER", name, rights], force, action).await;
        added.map_err(|error| error.within("failed to create user"))
    }

    /// Copies the contents of an archive. The SDK has packed exactly the files that the pattern matches, under their
    /// paths in the context. As in E2B's builder, everything below the fixed part of the pattern goes into the
    /// destination: for `src/**/*.py`, what is in `src`, with its directories.
    async fn copy_archive(
        &mut self,
        stack: &mut Stack,
        pattern: &str,
        archive: &Path,
        to: CopyTo,
        owner: String,
        force: bool,
    ) -> Result<(), StepError> {
        // The path is made of a team and a hash by the server. No user chose any part of it.
        let file = File::open(archive).map_err(|error| StepError::internal("open the archive", error))?;
        let scratch = self.unpack(file, Kind::Plain).await?;
        let view =
            View::of_directory(scratch.path()).map_err(|error| StepError::internal("read the archive", error))?;
        let source = Source { top_links: TopLinks::Kept, ..Source::of(view) };
        let (wanted, quota) = (pattern.to_owned(), self.work.quota(Bounds::default()));
        let found = self.work.run(move || {
            let paths = vec![fixed_part(&wanted)];
            let digest = source.digest(&paths, &quota).map_err(|error| match error.kind() {
                ErrorKind::NotFound => StepError::invalid(format!("there is no file {wanted}")),
                _ => StepError::internal("read the archive", error),
            })?;
            Ok((source, paths, digest))
        });
        let (source, paths, digest) = found.await?;
        let mode = to.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let destination = to.destination.to_string_lossy().into_owned();
        let form = if to.is_directory { "directory" } else { "" };
        let words = [COPY, pattern, &destination, form, &owner, &mode, &digest].map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let from =
            CopyFrom::Files { source: Arc::new(source), paths, inline: Vec::new(), _scratch: Some(Arc::new(scratch)) };
        self.step(stack, &words, force, Action::Copy(Copy { from, to, owner: Some(owner) })).await
    }

    /// Unpacks an archive into a temporary directory, which is removed when it is dropped.
    pub(super) async fn unpack(&self, archive: File, kind: Kind) -> Result<Scratch, StepError> {
        let templates = self.sandboxes.templates_directory();
        let bounds =
            Bounds { bytes: self.limits.disk.map_or(Bounds::default().bytes, |disk| disk.0), ..Bounds::default() };
        let quota = self.work.quota(bounds);
        let unpacked = move || {
            let scratch = Scratch::unique(&templates, "files");
            let scratch = scratch.map_err(|error| StepError::internal("create a directory for the files", error))?;
            let stream = decompress(std::io::BufReader::with_capacity(1 << 18, archive));
            let stream = stream.map_err(|error| StepError::internal("open the archive", error))?;
            let done = unpack_within(stream, scratch.path(), kind, &quota);
            done.map_err(|error| StepError::invalid(chain(&error)))?;
            Ok(scratch)
        };
        self.work.run(unpacked).await
    }
}

/// A command, shortened for an error message.
fn shortened(command: &str) -> String {
    const MAX_CHARS: usize = 500;
    let mut shown: String = command.chars().take(MAX_CHARS).collect();
    if shown.len() < command.len() {
        shown.push('…');
    }
    shown
}

fn describe(instruction: &BuildInstruction) -> String {
    match instruction {
        BuildInstruction::Run { command, .. } => format!("RUN {command}"),
        BuildInstruction::Copy { source, destination, .. } => format!("COPY {source} {destination}"),
        BuildInstruction::Env(pairs) => {
            let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
            format!("ENV {}", names.join(" "))
        }
        BuildInstruction::Workdir(path) => format!("WORKDIR {path}"),
        BuildInstruction::User { name, .. } => format!("USER {name}"),
    }
}
