//! Creates a run's task from a new workflow or, after a crash, from the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{
    EventKind, InvocationRow, NodeRow, NodeSpec, NodeState, RunId, RunRow, RunStatus, StoreError, TeamId,
};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::output::MAX_RUN;
use super::{Request, RunTask};
use crate::runs::graph::{Graph, GraphError, GraphNode};
use crate::runs::live_output::LiveOutput;
use crate::runs::shared::Shared;
use crate::runs::workflow::Workflow;

/// A run to be started.
#[derive(Debug)]
pub(crate) struct NewRun {
    pub(crate) id: RunId,
    pub(crate) team: TeamId,
    pub(crate) client: String,
    pub(crate) workflow: Workflow,
}

/// The channel ends for the users of a run's task.
pub(in crate::runs) struct TaskHandles {
    pub(in crate::runs) commands: mpsc::Sender<Request>,
    pub(in crate::runs) seen: watch::Receiver<i64>,
    pub(in crate::runs) output: Arc<LiveOutput>,
}

/// How many commands may be queued.
const COMMANDS: usize = 32;

/// A task for a run with these rows.
pub(in crate::runs) fn new_task(
    shared: &Arc<Shared>,
    row: RunRow,
    nodes: Vec<NodeRow>,
    invocations: &[InvocationRow],
) -> Result<(RunTask, TaskHandles), GraphError> {
    let as_graph_node = |node: &NodeRow| GraphNode {
        id: node.spec.id.clone(),
        depends_on: node.spec.depends_on.clone(),
        state: node.state,
    };
    let graph = Graph::new(nodes.iter().map(as_graph_node).collect())?;
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (seen, watching) = watch::channel(row.last_seq);
    let output = Arc::<LiveOutput>::default();
    let retrying: HashSet<String> =
        nodes.iter().filter(|node| node.next_at.is_some()).map(|node| node.spec.id.clone()).collect();
    let task = RunTask {
        shared: Arc::clone(shared),
        row,
        graph,
        next_place: nodes.iter().map(|node| node.place + 1).max().unwrap_or(0),
        next_invocation: invocations.iter().map(|attempt| attempt.number + 1).max().unwrap_or(0),
        nodes: nodes.into_iter().map(|node| (node.spec.id.clone(), node)).collect::<HashMap<_, _>>(),
        open: HashMap::new(),
        retrying,
        begun: HashSet::new(),
        performing: JoinSet::new(),
        commands: receiver,
        seen,
        output: Arc::clone(&output),
        output_at: tokio::time::Instant::now(),
        output_room: MAX_RUN,
        changes: super::Changes::default(),
        end: None,
    };
    Ok((task, TaskHandles { commands, seen: watching, output }))
}

pub(in crate::runs) fn new_row(spec: NodeSpec, place: i64) -> NodeRow {
    NodeRow {
        spec,
        place,
        state: NodeState::Pending,
        attempts: 0,
        next_at: None,
        approved: false,
        output: None,
        error: None,
        started_at: None,
        ended_at: None,
    }
}

impl NewRun {
    pub(in crate::runs) fn into_task(self, shared: &Arc<Shared>) -> Result<(RunTask, TaskHandles), GraphError> {
        let now = Timestamp::now();
        let settings = self.workflow.settings;
        let row = RunRow {
            id: self.id,
            team: self.team,
            workflow: self.workflow.id,
            name: self.workflow.name,
            client: self.client,
            status: RunStatus::Idle,
            reason: None,
            error: None,
            paused: None,
            deadline_at: settings.timeout_ms.map(|timeout| now.plus(Duration::from_millis(timeout))),
            settings,
            tokens_used: 0,
            last_seq: 0,
            created_at: now,
            time_left_ms: None,
            approval_until: None,
            ended_at: None,
        };
        let nodes = (0..).zip(self.workflow.nodes).map(|(place, spec)| new_row(spec, place)).collect();
        let (mut task, ends) = new_task(shared, row, nodes, &[])?;
        let ids: Vec<String> = task.graph.nodes().iter().map(|node| node.id.clone()).collect();
        let data = json!({ "workflow_id": task.row.workflow, "name": task.row.name, "nodes": ids.len() });
        task.event(EventKind::RunStarted, None, data);
        ids.iter().for_each(|id| task.with_node(id, |_| {}));
        Ok((task, ends))
    }
}

impl RunTask {
    /// Records a new run. It is tried only once, because the client waits for the result.
    pub(in crate::runs) async fn record_first(&mut self) -> Result<(), StoreError> {
        let turn = self.take_turn();
        self.shared.ledger.commit(&turn).await?;
        self.shared.mirror.notify(&self.row.id);
        Ok(())
    }

    /// After a crash: starts running nodes again, because it is unknown how far they came.
    pub(in crate::runs) fn take_over(&mut self, invocations: Vec<InvocationRow>) {
        let running = self.graph.nodes().iter().filter(|node| node.state == NodeState::Running);
        for id in running.map(|node| node.id.clone()).collect::<Vec<_>>() {
            self.move_node(&id, NodeState::Pending);
            // An attempt that the server interrupted is not the node's failure.
            self.with_node(&id, |node| node.attempts = node.attempts.saturating_sub(1));
            let data = json!({ "message": "the server stopped while this node ran; starting it again" });
            self.event(EventKind::IntermediateLog, Some(&id), data);
        }
        for mut attempt in invocations.into_iter().filter(|attempt| attempt.body["status"] == "running") {
            attempt.body["status"] = json!("failed");
            attempt.body["error_message"] = json!("the server stopped while this node ran");
            self.record_invocation(attempt);
        }
    }
}
