//! The sandbox in which build steps run. Its writable layer becomes the layers of the steps.
//!
//! One sandbox serves all consecutive steps. After each step, its remaining processes are killed and the changes become
//! a layer. That only takes a scan of the changed files, not a new sandbox.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isopod_guest_client::guest::{Event, Guest, GuestError, OutputLines, StartProcess};
use isopod_image::unpack::Quota;
use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::node::Incarnation;
use isopod_wire::{Bytes, Limits, NetworkPolicy};

use super::cache::Found;
use super::log::Log;
use super::stack::{Stack, max_layers};
use super::step_error::{StepError, chain};
use super::view::View;
use super::work::Work;
use crate::guest_request;
use crate::sandbox::{Sandboxes, build_spec};
use crate::template::{Stamps, Template, commit_changes, layer_bounds};

/// How often the remaining processes of a step are killed before the build gives up, and how long to wait in between.
const ATTEMPTS: usize = 500;
const PAUSE: Duration = Duration::from_millis(2);
/// How much of a failed step's output the error includes.
const MAX_ERROR_BYTES: usize = 2000;

#[derive(Debug)]
pub(super) struct BuildSandbox {
    sandboxes: Arc<Sandboxes>,
    incarnation: Incarnation,
    pub(super) guest: Guest,
    /// Keeps the path to the guest's socket open.
    directory: File,
    pub(super) view: Arc<View>,
    area: PathBuf,
    /// The disk limit, and so the size limit of a layer.
    disk: Option<Bytes>,
    pub(super) work: Arc<Work>,
    cgroup: SandboxCgroup,
    init: u32,
    stamps: Stamps,
    /// Identifies the current files, as [`Stack::chain`].
    pub(super) chain: String,
    is_closed: bool,
}

impl BuildSandbox {
    /// Starts a sandbox on a stack of layers.
    pub(super) async fn open(
        sandboxes: &Arc<Sandboxes>,
        stack: &Stack,
        limits: Limits,
        work: &Arc<Work>,
    ) -> Result<Self, StepError> {
        if stack.layers.len() >= max_layers() {
            let max = max_layers();
            return Err(StepError::invalid(format!(
                "a template has at most {max} layers here; combine several RUN instructions into one"
            )));
        }
        let base = sandboxes.template_pools.base().template();
        let template = Template::for_build(&base, stack.on_host, stack.topmost_first());
        Self::on_template(sandboxes, template, stack.chain.clone(), limits, work).await
    }

    /// Starts a sandbox on a template.
    pub(super) async fn on_template(
        sandboxes: &Arc<Sandboxes>,
        template: Arc<Template>,
        chain: String,
        limits: Limits,
        work: &Arc<Work>,
    ) -> Result<Self, StepError> {
        let spec = build_spec(limits, NetworkPolicy::default(), BTreeMap::new());
        let incarnation = sandboxes
            .create_on(template, spec)
            .await
            .map_err(|error| StepError::internal("start a sandbox for the step", error))?;
        let opened = Self::of_incarnation(sandboxes, &incarnation, chain, limits.disk, work).await;
        if opened.is_err() {
            // Report the first failure.
            let _ = sandboxes.kill(&incarnation).await;
        }
        opened
    }

    async fn of_incarnation(
        sandboxes: &Arc<Sandboxes>,
        incarnation: &Incarnation,
        chain: String,
        disk: Option<Bytes>,
        work: &Arc<Work>,
    ) -> Result<Self, StepError> {
        let failed = |error: std::io::Error| StepError::internal("open the sandbox of the step", error);
        let parts =
            sandboxes.parts_of_build(incarnation).await.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        let directory = File::open(&parts.directory).map_err(failed)?;
        let view = View::of_sandbox(&parts.init, parts.first_id).map_err(failed)?;
        let area = parts.area.clone();
        let quota = work.quota(layer_bounds(disk));
        let read =
            move || Stamps::read(&area, &quota).map_err(|error| StepError::internal("read the sandbox's files", error));
        let stamps = work.run(read).await?;
        Ok(Self {
            sandboxes: Arc::clone(sandboxes),
            incarnation: incarnation.clone(),
            guest: guest_request::client(&directory).map_err(failed)?.with_user("root"),
            directory,
            view: Arc::new(view),
            area: parts.area,
            disk,
            work: Arc::clone(work),
            cgroup: parts.cgroup,
            init: parts.init.pid,
            stamps,
            chain,
            is_closed: false,
        })
    }

    /// Runs a process to its end and logs its output line by line.
    pub(super) async fn run(&self, start: StartProcess, log: &Log) -> Result<(), StepError> {
        let failed = |error: GuestError| StepError::step(format!("could not run it: {}", chain(&error)));
        let mut process = self.guest.start(start).await.map_err(failed)?;
        let mut output = OutputLines::new(MAX_ERROR_BYTES);
        while let Some(event) = process.next().await.map_err(failed)? {
            match event {
                Event::Stdout(bytes) | Event::Stderr(bytes) | Event::Pty(bytes) => {
                    for line in output.push(&bytes) {
                        log.info(line).await;
                    }
                }
                Event::End(ended) => {
                    if let Some(line) = output.rest() {
                        log.info(line).await;
                    }
                    return match ended.exit_code {
                        0 => Ok(()),
                        code => Err(StepError::step(explain(&output, code, ended.error.as_deref()))),
                    };
                }
                Event::Started(_) => {}
            }
        }
        Err(StepError::step("its sandbox ended: it may have used too much memory"))
    }

    /// Kills the remaining processes of a step and commits its changes as the layer with this id.
    pub(super) async fn commit(&mut self, id: &str) -> Result<Found, StepError> {
        self.settle().await?;
        let mut stamps = std::mem::take(&mut self.stamps);
        let (area, templates, id) = (self.area.clone(), self.sandboxes.templates_directory(), id.to_owned());
        let quota = self.quota();
        let committed = self.work.run(move || {
            let committed = commit_changes(&area, &mut stamps, &templates, &id, &quota);
            Ok((committed, stamps))
        });
        let (committed, stamps) = committed.await?;
        self.stamps = stamps;
        match committed {
            Ok(Some((layer, bytes))) => Ok(Found::Layer(Arc::new(layer), bytes)),
            Ok(None) => Ok(Found::Nothing),
            Err(error) if error.is_about_the_files() => {
                Err(StepError::step(format!("cannot store the changes of the step: {error}")))
            }
            Err(error) => Err(StepError::internal("store the changes of the step", error)),
        }
    }

    /// The quota for one write into the sandbox or one copy out of it.
    pub(super) fn quota(&self) -> Quota {
        self.work.quota(layer_bounds(self.disk))
    }

    async fn settle(&self) -> Result<(), StepError> {
        for _ in 0..ATTEMPTS {
            if self.cgroup.kill_all_but(self.init) == 0 {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(StepError::step("cannot kill the processes that it left running"))
    }

    pub(super) fn directory(&self) -> &File {
        &self.directory
    }

    pub(super) fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// The pid of its first process on the host.
    pub(super) fn init(&self) -> u32 {
        self.init
    }

    pub(super) async fn close(mut self) {
        self.is_closed = true;
        end_sandbox(&self.sandboxes, &self.incarnation).await;
    }
}

async fn end_sandbox(sandboxes: &Arc<Sandboxes>, incarnation: &Incarnation) {
    if let Err(error) = sandboxes.kill(incarnation).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "could not remove the sandbox of a build");
    }
}

impl Drop for BuildSandbox {
    /// Removes the sandbox if a build is dropped before it is closed.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let (sandboxes, incarnation) = (Arc::clone(&self.sandboxes), self.incarnation.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { end_sandbox(&sandboxes, &incarnation).await });
        }
    }
}

/// Says how a step failed, with the end of its output.
fn explain(output: &OutputLines, code: i32, error: Option<&str>) -> String {
    let tail = output.tail.text();
    let how = error.map_or_else(|| format!("exit code {code}"), |error| format!("exit code {code} ({error})"));
    if tail.is_empty() { how } else { format!("{how}: {tail}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_exit_code_and_the_end_of_the_output() {
        let mut output = OutputLines::new(MAX_ERROR_BYTES);
        assert_eq!(explain(&output, 2, None), "exit code 2");
        assert_eq!(explain(&output, 137, Some("killed")), "exit code 137 (killed)");
        output.push(&[b'x'; 5000]);
        assert_eq!(explain(&output, 1, None), format!("exit code 1: {}", "x".repeat(MAX_ERROR_BYTES)));
    }
}
