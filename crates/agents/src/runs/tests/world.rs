//! Everything outside the server that survives it: sandboxes, and what was executed in them. It checks that no finished
//! node runs again and that no ended run uses a sandbox.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use isopod_store::{NodeState, RunId, RunTurn, Store, StoreError, TeamId};
use serde_json::json;
use tokio::sync::Notify;

use crate::runs::executor::{Disposed, Executor, ExecutorCall, ExecutorError, ExecutorResult, ExecutorWork};
use crate::runs::ledger::Ledger;
use crate::sessions::{OutputKind, OutputSink};

#[derive(Debug, Default)]
pub(super) struct World {
    seen: Mutex<Seen>,
    /// How many disposals fail before one succeeds.
    pub(super) failing_disposals: AtomicI64,
    /// How many checkpoints fail before one succeeds.
    pub(super) failing_checkpoints: AtomicI64,
}

#[derive(Debug, Default)]
struct Seen {
    team: Option<TeamId>,
    alive: HashSet<RunId>,
    made: HashMap<RunId, u32>,
    /// Sandboxes that no node requested.
    strays: HashMap<RunId, u32>,
    killed: HashMap<RunId, u32>,
    executed: Vec<(RunId, String)>,
    finished: HashSet<(RunId, String)>,
    ended: HashSet<RunId>,
    failures: HashMap<(RunId, String), u32>,
    /// The node that each checkpoint is of, and how much was executed before it.
    checkpoints: HashMap<RunId, (String, usize)>,
    wrong: Vec<String>,
}

impl World {
    pub(super) fn executed(&self, run: &RunId) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.executed.iter().filter(|(of, _)| of == run).map(|(_, node)| node.clone()).collect()
    }

    pub(super) fn has_checkpoint(&self, run: &RunId) -> bool {
        self.seen.lock().unwrap().checkpoints.contains_key(run)
    }

    pub(super) fn made(&self, run: &RunId) -> u32 {
        self.seen.lock().unwrap().made.get(run).copied().unwrap_or(0)
    }

    pub(super) fn is_alive(&self, run: &RunId) -> bool {
        self.seen.lock().unwrap().alive.contains(run)
    }

    /// Creates a sandbox, as an agent would that does not know that its run has ended.
    pub(super) fn make_sandbox(&self, run: &RunId) {
        let mut seen = self.seen.lock().unwrap();
        seen.alive.insert(run.clone());
        *seen.made.entry(run.clone()).or_default() += 1;
        *seen.strays.entry(run.clone()).or_default() += 1;
    }

    /// Asserts that at most one sandbox existed and that it is gone.
    pub(super) fn assert_disposed(&self, run: &RunId) {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.wrong, Vec::<String>::new());
        assert!(!seen.alive.contains(run), "{run} has a sandbox");
        assert!(!seen.checkpoints.contains_key(run), "{run} has a checkpoint");
        let count = |of: &HashMap<RunId, u32>| of.get(run).copied().unwrap_or(0);
        assert_eq!(count(&seen.made), count(&seen.killed), "{run}");
        assert!(count(&seen.made) - count(&seen.strays) <= 1, "{run} had more than one sandbox");
    }
}

/// The executor of [`World`]. A command says what happens: `ok`, `fail`, `fail N` (N times, then it succeeds), `hang`, `say WORDS`.
pub(super) struct FakeExecutor {
    pub(super) world: Arc<World>,
    pub(super) killer: Arc<Killer>,
}

#[async_trait]
impl Executor for FakeExecutor {
    async fn execute(
        &self,
        team: &TeamId,
        run: &RunId,
        call: ExecutorCall,
        sink: &mut dyn OutputSink,
    ) -> Result<ExecutorResult, ExecutorError> {
        let ExecutorWork::Command(command) = &call.work else { panic!("the tests have commands only") };
        let key = (run.clone(), call.node.clone());
        {
            let mut seen = self.world.seen.lock().unwrap();
            if seen.finished.contains(&key) {
                seen.wrong.push(format!("{} was finished and ran again", call.node));
            }
            if seen.ended.contains(run) {
                seen.wrong.push(format!("{} ran after its run had ended", call.node));
            }
            seen.team = Some(team.clone());
            seen.executed.push(key.clone());
            if seen.alive.insert(run.clone()) {
                *seen.made.entry(run.clone()).or_default() += 1;
            }
        }
        tokio::task::yield_now().await;
        match command.split_once(' ').unwrap_or((command, "")) {
            ("ok", text) => Ok(ExecutorResult { success: true, output: json!(text), ..ExecutorResult::default() }),
            ("hang", text) => {
                sink.write(OutputKind::Stdout, text);
                std::future::pending().await
            }
            ("say", text) => {
                text.split(' ').for_each(|word| sink.write(OutputKind::Stdout, &format!("{word}\n")));
                Ok(ExecutorResult { success: true, output: json!({ "result": text }), ..ExecutorResult::default() })
            }
            ("panic", _) => panic!("the executor panics, as it was told to"),
            (_, times) => {
                let mut seen = self.world.seen.lock().unwrap();
                let failures = seen.failures.entry(key).or_default();
                *failures += 1;
                let success = times.parse().is_ok_and(|times: u32| *failures > times);
                let error = (!success).then(|| "it failed, as it was told to".to_owned());
                Ok(ExecutorResult { success, error, ..ExecutorResult::default() })
            }
        }
    }

    async fn checkpoint(&self, team: &TeamId, run: &RunId, node: &str, is_repeated: bool) -> Result<(), ExecutorError> {
        if self.world.failing_checkpoints.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Err(ExecutorError { doing: "take a checkpoint", source: "not yet".into() });
        }
        let mut seen = self.world.seen.lock().unwrap();
        seen.team = Some(team.clone());
        if seen.alive.insert(run.clone()) {
            *seen.made.entry(run.clone()).or_default() += 1;
        }
        let done = match seen.checkpoints.get(run).cloned() {
            Some((of, before)) if of == node => {
                let since = seen.executed[before..].iter().filter(|(of, _)| of == run);
                let undone: Vec<_> = since.filter(|(_, id)| id.split(' ').next_back() != Some(node)).cloned().collect();
                seen.wrong.extend(undone.iter().map(|(_, id)| format!("{id} was undone with {node}")));
                "back to"
            }
            _ => {
                if is_repeated {
                    seen.wrong.push(format!("{node} has lost its checkpoint"));
                }
                let before = seen.executed.len();
                seen.checkpoints.insert(run.clone(), (node.to_owned(), before));
                "checkpoint of"
            }
        };
        seen.executed.push((run.clone(), format!("{done} {node}")));
        Ok(())
    }

    async fn dispose(&self, _: &TeamId, run: &RunId) -> Result<Disposed, ExecutorError> {
        self.killer.step().await;
        if self.world.failing_disposals.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Err(ExecutorError { doing: "remove the sandbox", source: "not yet".into() });
        }
        let killed = {
            let mut seen = self.world.seen.lock().unwrap();
            seen.checkpoints.remove(run);
            let killed = seen.alive.remove(run);
            *seen.killed.entry(run.clone()).or_default() += u32::from(killed);
            killed
        };
        self.killer.step().await;
        Ok(Disposed { killed })
    }

    async fn holding(&self) -> Result<Vec<(TeamId, RunId)>, ExecutorError> {
        let seen = self.world.seen.lock().unwrap();
        Ok(seen.alive.iter().map(|run| (seen.team.clone().unwrap(), run.clone())).collect())
    }
}

/// Ends a server at its n-th step: that step never returns.
#[derive(Debug)]
pub(super) struct Killer {
    left: AtomicI64,
    killed: Notify,
}

impl Killer {
    pub(super) fn never() -> Arc<Self> {
        Self::at(i64::MAX)
    }

    pub(super) fn at(step: i64) -> Arc<Self> {
        Arc::new(Self { left: AtomicI64::new(step), killed: Notify::new() })
    }

    pub(super) async fn step(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    pub(super) async fn has_killed(&self) {
        self.killed.notified().await;
    }
}

/// The store, with a step before and after each turn. It also records what is committed.
pub(super) struct WatchedLedger {
    pub(super) store: Store,
    pub(super) world: Arc<World>,
    pub(super) killer: Arc<Killer>,
}

#[async_trait]
impl Ledger for WatchedLedger {
    async fn commit(&self, turn: &RunTurn) -> Result<(), StoreError> {
        self.killer.step().await;
        // On a busy machine a write takes a while, and others continue in the meantime.
        tokio::time::sleep(Duration::from_micros(50)).await;
        self.store.commit_turn(turn).await?;
        {
            let mut seen = self.world.seen.lock().unwrap();
            let done = turn.nodes.iter().filter(|node| node.state == NodeState::Done);
            let done: Vec<_> = done.map(|node| (turn.run.id.clone(), node.spec.id.clone())).collect();
            seen.finished.extend(done);
            if turn.run.status.is_terminal() {
                seen.ended.insert(turn.run.id.clone());
            }
        }
        self.killer.step().await;
        Ok(())
    }
}
