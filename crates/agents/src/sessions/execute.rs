//! A call of an agent: gets the run's sandbox, pushes new input, runs the code or command, and pulls new files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_control::lifecycle::{ActError, GuestConnection, Refusal, Sandbox};
use isopod_store::clock::Timestamp;
use isopod_store::{ArtifactInfo, Owner, TeamId, TeamOwner};
use isopod_wire::SandboxId;

use super::lease::Lease;
use super::output_sink::OutputSink;
use super::report::{Saved, error_text, log_text, result_text};
use super::run_action::run_action;
use super::tool::{SyncReport, ToolCall, ToolOutput, ToolResult};
use super::workspace::{Hashes, Known, RunFiles, Skipped, WorkspaceError, content_type, pull, push, rich_results};
use super::{SessionError, Sessions};

/// The limit on transferring files, each way, so that a sandbox that transfers them very slowly does not block the run
/// forever.
const SYNC_DEADLINE: Duration = Duration::from_secs(600);
/// The time between the timeout of the code and that of the sandbox.
const MARGIN: Duration = Duration::from_secs(60);

impl Sessions {
    /// Runs an action in the owner's sandbox, and passes its output on while it runs. A failure of the action is a
    /// result. An error means that there was no sandbox to run it in.
    pub(crate) async fn execute(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        call: ToolCall,
        sink: &mut dyn OutputSink,
    ) -> Result<ToolResult, SessionError> {
        let files = self.files_of(team, owner).await?;
        self.put_inputs(&files, &call).await?;
        let duration = self.settings.timeout.max(call.timeout.saturating_add(MARGIN)).min(self.fleet.max_lifetime());
        let lease = self.get_or_create(team, owner, duration).await?;
        let inside = self.inside(owner, &lease.sandbox)?;
        let known = self.known_of(lease.sandbox.id()).await?;
        let mut report = SyncReport::default();
        let began = Instant::now();
        let pushed = {
            let mut known = known.lock().await;
            let pushing = push(&inside.guest, &files, &mut known, self.settings.caps, &mut report);
            in_time("into the sandbox", pushing).await
        };
        report.millis = millis(began);
        let hashes = match pushed {
            Ok(hashes) => hashes,
            Err(error) => return Ok(failed(&lease, ToolOutput::default(), report, &error)),
        };
        self.store_hashes(owner, &lease.sandbox, hashes);
        let budget = self.fleet.memory.of(team);
        // Kept until the result is complete.
        let mut memory = budget.reserve();
        let interpreter = inside.interpreter.clone().with_memory(budget);
        let inside = GuestConnection { interpreter, ..inside };
        let (output, broken) = run_action(&inside, &call.action, call.timeout, sink, &mut memory).await;
        if let Some(error) = broken {
            return Ok(failed(&lease, output, report, &error));
        }
        let began = Instant::now();
        let mut known = known.lock().await;
        let pulling = pull(&inside.guest, &files, &mut known, self.settings.caps, call.agent.as_deref(), &mut report);
        let pulled = in_time("out of the sandbox", pulling).await;
        let mut artifacts = match pulled {
            Ok(pulled) => pulled.artifacts,
            Err(error) => return Ok(failed(&lease, output, report, &error)),
        };
        self.save_known(lease.sandbox.id(), &mut known).await;
        drop(known);
        report.millis += millis(began);
        let saved = save_rich(owner, &files, &output, call.agent.as_deref(), &mut artifacts, &mut report).await;
        self.store.save_artifacts(team, owner.id(), &artifacts).await?;
        Ok(finished(&lease, output, report, artifacts, &saved))
    }

    /// The directories of the owner, claimed for the team.
    pub(crate) async fn files_of(&self, team: &TeamId, owner: &Owner) -> Result<RunFiles, SessionError> {
        if self.directories.is_shared() && !self.store.claim_run_directory(team, owner.id()).await? {
            return Err(SessionError::NotYours(owner.clone()));
        }
        let (directories, team, owner) = (self.directories.clone(), team.clone(), owner.clone());
        let opening = tokio::task::spawn_blocking(move || directories.ensure(&team, &owner));
        Ok(opening.await.map_err(|_| SessionError::Aborted)??)
    }

    async fn put_inputs(&self, files: &RunFiles, call: &ToolCall) -> Result<(), SessionError> {
        if call.files.is_empty() {
            return Ok(());
        }
        let (input, given) = (Arc::clone(&files.input), call.files.clone());
        let writing = tokio::task::spawn_blocking(move || {
            for (path, contents) in given {
                input.write_bytes(&path, true, &contents).map_err(|source| WorkspaceError::Host {
                    what: "write",
                    path: path.as_path().to_owned(),
                    source,
                })?;
            }
            Ok::<_, WorkspaceError>(())
        });
        Ok(writing.await.map_err(|_| SessionError::Aborted)??)
    }

    pub(super) fn inside(&self, owner: &Owner, sandbox: &Sandbox) -> Result<GuestConnection, SessionError> {
        let gone = || SessionError::Use { owner: owner.clone(), source: ActError::Refused(Refusal::NotFound) };
        sandbox.view().guest_connection(&self.fleet.node).ok_or_else(gone)
    }

    /// What is known about a sandbox's files, from memory or from the store.
    pub(super) async fn known_of(&self, sandbox: &SandboxId) -> Result<Arc<tokio::sync::Mutex<Known>>, SessionError> {
        if let Some(known) = self.with_known(|all| all.get(sandbox).cloned()) {
            return Ok(known);
        }
        let records = self.store.session_files(sandbox).await?;
        let read = Arc::new(tokio::sync::Mutex::new(Known::from_records(records)));
        Ok(self.with_known(|all| Arc::clone(all.entry(sandbox.clone()).or_insert(read))))
    }

    /// Saves what is known. A failure does not fail the call: a restarted server only transfers more than necessary.
    pub(super) async fn save_known(&self, sandbox: &SandboxId, known: &mut Known) {
        let unsaved = known.take_unsaved();
        if let Err(error) = self.store.save_session_files(sandbox, &unsaved).await {
            tracing::warn!(%sandbox, error = isopod_wire::error_chain(&error), "could not record the transferred files yet");
            known.keep_unsaved(unsaved);
        }
    }

    fn store_hashes(self: &Arc<Self>, owner: &Owner, sandbox: &Arc<Sandbox>, hashes: Hashes) {
        if hashes.is_empty() || !self.map.wants_hashes() {
            return;
        }
        let owner = TeamOwner::new(sandbox.team(), owner);
        let (sessions, sandbox) = (Arc::clone(self), Arc::clone(sandbox));
        tokio::spawn(async move { sessions.map.put_hashes(&owner, &hashes, sessions.entry_expiry(&sandbox)).await });
    }
}

async fn in_time<T>(
    way: &'static str,
    moving: impl Future<Output = Result<T, WorkspaceError>>,
) -> Result<T, WorkspaceError> {
    let late = |_| WorkspaceError::Late { way, limit: SYNC_DEADLINE };
    tokio::time::timeout(SYNC_DEADLINE, moving).await.map_err(late)?
}

fn millis(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Saves the rich formats of results into the output.
async fn save_rich(
    owner: &Owner,
    files: &RunFiles,
    output: &ToolOutput,
    agent: Option<&str>,
    artifacts: &mut Vec<ArtifactInfo>,
    report: &mut SyncReport,
) -> Vec<Saved> {
    let found = output.results.iter().enumerate().flat_map(|(n, result)| rich_results(owner.id(), n, result));
    let mut saved = Vec::new();
    for rich in found {
        let rich = match rich {
            Ok(rich) => rich,
            Err(form) => {
                report.skipped.push(Skipped::new(form, "a result in this format could not be decoded"));
                continue;
            }
        };
        let (tree, path, size) = (Arc::clone(&files.output), rich.path.clone(), rich.contents.len() as u64);
        let writing = tokio::task::spawn_blocking(move || tree.write_bytes(&rich.path, true, &rich.contents));
        let name = path.as_str().to_owned();
        if let Err(error) = writing.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            report.skipped.push(Skipped::new(name, format!("could not be written: {error}")));
            continue;
        }
        artifacts.push(ArtifactInfo {
            filename: name.clone(),
            agent_id: agent.map(str::to_owned),
            generated_at: Timestamp::now(),
            size_bytes: size,
            content_type: content_type(&name).to_owned(),
        });
        saved.push(Saved { label: rich.label, name });
    }
    saved
}

fn finished(
    lease: &Lease,
    output: ToolOutput,
    report: SyncReport,
    artifacts: Vec<ArtifactInfo>,
    saved: &[Saved],
) -> ToolResult {
    let log = log_text(&output, saved, &report.skipped);
    let names: Vec<String> = artifacts.iter().map(|artifact| artifact.filename.clone()).collect();
    let (result, error, logs) = match &output.error {
        Some(failure) => (None, Some(error_text(failure)), Some(log)),
        None => (Some(result_text(log, &names)), None, None),
    };
    let success = error.is_none();
    ToolResult { success, result, error, logs, files_generated: names, artifacts, ..blank(lease, output, report) }
}

/// The sandbox failed during the call. The next call finds it again or gets another one.
fn failed(
    lease: &Lease,
    output: ToolOutput,
    report: SyncReport,
    why: &(dyn std::error::Error + 'static),
) -> ToolResult {
    let log = log_text(&output, &[], &report.skipped);
    let error = Some(format!("Sandbox failed: {}", isopod_wire::error_chain(why)));
    ToolResult { error, logs: Some(log), ..blank(lease, output, report) }
}

fn blank(lease: &Lease, output: ToolOutput, sync: SyncReport) -> ToolResult {
    ToolResult {
        success: false,
        result: None,
        error: None,
        logs: None,
        files_generated: Vec::new(),
        artifacts: Vec::new(),
        output,
        sandbox_id: lease.sandbox.id().as_str().to_owned(),
        restarted: lease.replaced.is_some(),
        previous_sandbox_id: lease.replaced.as_ref().map(|old| old.as_str().to_owned()),
        restarts: lease.restarts,
        sync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock advances whenever everything waits.
    #[tokio::test(start_paused = true)]
    async fn moving_files_that_never_ends_is_given_up() {
        let never = std::future::pending::<Result<(), WorkspaceError>>();
        let error = in_time("out of the sandbox", never).await.unwrap_err();
        assert_eq!(error.to_string(), "transferring files out of the sandbox took longer than 600 s");
        assert!(in_time("into the sandbox", async { Ok(()) }).await.is_ok());
    }
}
