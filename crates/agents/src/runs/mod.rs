//! Runs: workflows as graphs of nodes, executed to their end whatever happens, and cleaned up afterwards.
//!
//! - [`workflow`]: what people write. [`graph`]: the rules, as pure functions. [`engine`]: one task per run, which
//!   records each turn before it takes effect. [`cleanup`]: the outbox of ended runs. [`reap`]: periodically compares
//!   runs with sandboxes.
//! - A run's sandbox is behind [`executor`], its agents behind [`agent`]. All state is in the store, where watchers
//!   read it.
//!
//! ```text
//! start ─▶ running ◀──▶ awaitingapproval
//!             └─▶ completed | failed ─(same transaction)─▶ cleanup row ─▶ sandbox removed, agent services told
//! ```

mod agent;
mod cleanup;
mod engine;
mod executor;
mod graph;
mod invocation;
mod ledger;
mod live_logs;
mod live_output;
mod mirror;
mod open;
mod reap;
mod redis_copy;
mod service_cleanup;
mod session_executor;
mod shared;
#[cfg(test)]
mod tests;
mod view;
mod workflow;

use std::sync::Arc;
use std::time::Duration;

use isopod_store::{NodeSpec, RunId, Work};
use serde_json::Value;
use tokio::sync::{oneshot, watch};

pub(crate) use agent::{AgentError, Invocation};
pub(crate) use engine::{Command, Refusal};
pub(crate) use live_output::ToolLog;
pub(crate) use open::open_runs;
pub(crate) use shared::RunParts;
pub(crate) use view::{RunSummary, summary};
pub(crate) use workflow::{Document, Workflow, WorkflowError};

use isopod_store::{Owner, Resource, RunRow, StoreError, TeamId};

use engine::{NewRun, Request, RunTask, TaskHandles, new_task};
use graph::GraphError;
use shared::{LiveRun, Shared};

/// The runs of this server.
#[derive(Debug)]
pub(crate) struct Runs {
    shared: Arc<Shared>,
}

/// Why a run was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("node {0:?} has no agent URL, and this server has no agent service")]
    NoAgent(String),
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("the agent service gave no plan")]
    Agent(#[from] AgentError),
    #[error("the agent service's plan cannot be run")]
    Workflow(#[from] WorkflowError),
    #[error("the agent service's plan cannot be run here")]
    Start(#[from] StartError),
}

impl Runs {
    pub(crate) fn new(parts: RunParts) -> Arc<Self> {
        Arc::new(Self { shared: Arc::new(Shared::new(parts)) })
    }

    /// Checks whether this server can run a workflow.
    pub(crate) fn check(&self, workflow: &Workflow) -> Result<(), StartError> {
        let needs_service = |node: &&NodeSpec| matches!(node.work(), Work::Agent { url: None });
        match workflow.nodes.iter().find(needs_service) {
            Some(node) if !self.shared.agents.has_service() => Err(StartError::NoAgent(node.id.clone())),
            _ => Ok(()),
        }
    }

    /// Asks the agent service for a workflow that does what the text says. Returns the workflow as the service wrote it,
    /// if this server can run it.
    pub(crate) async fn plan(&self, text: &str) -> Result<Value, PlanError> {
        let plan = self.shared.agents.plan(text).await?;
        self.check(&Workflow::from_value(plan.clone())?)?;
        Ok(plan)
    }

    /// Records a run and starts it.
    pub(crate) async fn start(
        &self,
        id: RunId,
        team: TeamId,
        client: String,
        workflow: Workflow,
    ) -> Result<(), StartError> {
        self.check(&workflow)?;
        let (mut task, ends) = NewRun { id: id.clone(), team, client, workflow }.into_task(&self.shared)?;
        task.record_first().await?;
        self.launch(&id, task, ends);
        Ok(())
    }

    /// Sends a command to a run and waits until it is recorded.
    pub(crate) async fn command(&self, team: &TeamId, id: &RunId, command: Command) -> Result<(), CommandError> {
        let row = self.find(team, id).await?.ok_or(Refusal::NotFound)?;
        if row.status.is_terminal() {
            return Err(Refusal::Ended.into());
        }
        let Some(live) = self.shared.find(id) else {
            self.shared.store.check_here(Resource::Run(id)).await?;
            return Err(Refusal::Ended.into());
        };
        let (reply, answer) = oneshot::channel();
        live.commands.send(Request { command, reply }).await.map_err(|_| Refusal::Ended)?;
        // A run that ends before it receives the command drops the sender.
        let gone = if self.shared.stop.is_cancelled() { Refusal::Stopping } else { Refusal::Ended };
        Ok(answer.await.map_err(|_| gone)??)
    }

    /// A run of this team. Runs of other teams are not found.
    pub(crate) async fn find(&self, team: &TeamId, id: &RunId) -> Result<Option<RunRow>, StoreError> {
        Ok(self.shared.store.find_run(id).await?.filter(|row| row.team == *team))
    }

    /// Whether it is an ended run of this team. A run that was never started here is not.
    pub(crate) async fn has_ended(&self, team: &TeamId, id: &RunId) -> Result<bool, StoreError> {
        if self.shared.find(id).is_some() {
            return Ok(false);
        }
        Ok(self.find(team, id).await?.is_some_and(|row| row.status.is_terminal()))
    }

    /// Changes whenever an active run has recorded something.
    pub(crate) fn watch(&self, id: &RunId) -> Option<watch::Receiver<i64>> {
        self.shared.find(id).map(|live| live.seen)
    }

    /// The log of a tool call that an agent makes in its run. `None` if there is no such active run.
    pub(crate) fn tool_log(
        &self,
        team: &TeamId,
        run: &Owner,
        agent: Option<&str>,
        tool: &str,
        arguments: &Value,
    ) -> Option<ToolLog> {
        let live = self.shared.find(&run.id().parse().ok()?).filter(|live| live.team == *team)?;
        Some(ToolLog::begin(live.output, agent.map(str::to_owned), tool, arguments))
    }

    /// Gives every active run a task: at the start, and whenever one is found without.
    pub(crate) async fn take_over_all(&self) -> Result<u32, StoreError> {
        let mut taken = 0;
        for id in self.shared.store.live_runs().await? {
            if self.shared.find(&id).is_some() {
                continue;
            }
            match self.take_over(&id).await {
                Ok(is_taken) => taken += u32::from(is_taken),
                // An unreadable run must not block the others.
                Err(error) => {
                    tracing::error!(run = %id, error = isopod_wire::error_chain(&error), "could not take over a run")
                }
            }
        }
        Ok(taken)
    }

    async fn take_over(&self, id: &RunId) -> Result<bool, StoreError> {
        let store = &self.shared.store;
        let Some(row) = store.find_run(id).await?.filter(|row| !row.status.is_terminal()) else { return Ok(false) };
        let (nodes, invocations) = (store.run_nodes(id).await?, store.run_invocations(id).await?);
        let (mut task, ends) = new_task(&self.shared, row, nodes, &invocations)
            .map_err(|error| StoreError::Corrupt { what: "the graph of a run", value: format!("{id}: {error}") })?;
        task.take_over(invocations);
        Ok(self.launch(id, task, ends))
    }

    fn launch(&self, id: &RunId, task: RunTask, ends: TaskHandles) -> bool {
        let team = task.team().clone();
        if !self.shared.add(id, LiveRun { commands: ends.commands, seen: ends.seen, team, output: ends.output }) {
            return false;
        }
        let guard = ActiveGuard { shared: Arc::clone(&self.shared), id: id.clone() };
        self.shared.tasks.spawn(async move {
            let _guard = guard;
            task.run().await;
        });
        true
    }

    /// Processes the outbox until the server stops.
    pub(crate) async fn run_cleanups(self: Arc<Self>) {
        cleanup::run_cleanups(Arc::clone(&self.shared)).await;
    }

    /// Waits until ended runs are cleaned up, for at most `timeout`.
    pub(crate) async fn finish_cleanups(&self, timeout: Duration) {
        cleanup::finish_cleanups(&self.shared, timeout).await;
    }

    /// Waits for the tasks of all runs, which end when the server stops.
    pub(crate) async fn drain(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

/// Keeps a run registered as active until it is dropped, even by a panic. The reaper then gives the run another task.
struct ActiveGuard {
    shared: Arc<Shared>,
    id: RunId,
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.shared.remove(&self.id);
    }
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the store failed")]
    Store(#[from] StoreError),
}
