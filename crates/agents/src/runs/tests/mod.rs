//! Runs with a fake executor, and a server that can be killed at any transition.

mod agents;
mod approvals;
mod checkpoints;
mod endings;
mod faults;
mod live_output;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use isopod_outbound::Trust;
use isopod_store::secrets::hash_key;
use isopod_store::{NodeState, RunId, RunStatus, Store};
use isopod_wire::node::Secret;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::agent::Agents;
use super::mirror::Mirror;
use super::*;
use world::{Killer, World};

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// The runs of a server, until it is dropped.
struct TestServer {
    runs: Arc<Runs>,
    store: Store,
    world: Arc<World>,
    team: TeamId,
    _stop: DropGuard,
}

impl TestServer {
    async fn begin(dir: &Path, world: &Arc<World>) -> Self {
        Self::begin_with(dir, world, Killer::never(), None).await
    }

    /// With a killer that ends it, and an agent service.
    async fn begin_with(dir: &Path, world: &Arc<World>, killer: Arc<Killer>, home: Option<String>) -> Self {
        let store = Store::for_test(dir).await;
        store.ensure_first_key(Some(Secret(KEY.to_owned()))).await.unwrap();
        let team = store.find_key(&hash_key(KEY)).await.unwrap().unwrap().team;
        let stop = CancellationToken::new();
        let runs = Runs::new(RunParts {
            store: store.clone(),
            ledger: Arc::new(world::WatchedLedger {
                store: store.clone(),
                world: Arc::clone(world),
                killer: Arc::clone(&killer),
            }),
            executor: Arc::new(world::FakeExecutor { world: Arc::clone(world), killer }),
            agents: Agents::new(Trust::new(Vec::new()), home, isopod_outbound::Policy::open()),
            mirror: Mirror::default(),
            live_logs: live_logs::LiveLogs::default(),
            retry_wait: Duration::from_millis(1),
            overtime: Duration::from_millis(1),
            cleanup_wait: Duration::from_millis(1),
            cleanup_deadline: Duration::from_millis(50),
            stop: stop.clone(),
        });
        runs.take_over_all().await.unwrap();
        tokio::spawn(Arc::clone(&runs).run_cleanups());
        Self { runs, store, world: Arc::clone(world), team, _stop: stop.drop_guard() }
    }

    async fn start(&self, flow: &str) -> RunId {
        let workflow = Workflow::parse(flow).unwrap();
        let id = RunId::random();
        self.runs.start(id.clone(), self.team.clone(), "public".to_owned(), workflow).await.unwrap();
        id
    }

    async fn row(&self, id: &RunId) -> RunRow {
        self.store.find_run(id).await.unwrap().unwrap()
    }

    async fn state(&self, id: &RunId) -> Value {
        self.runs.state(&self.row(id).await).await.unwrap()
    }

    async fn command(&self, id: &RunId, command: Command) -> Result<(), CommandError> {
        self.runs.command(&self.team, id, command).await
    }

    /// Waits until the run has this status.
    async fn until(&self, id: &RunId, status: RunStatus) {
        self.until_row(id, |row| row.status == status).await;
    }

    async fn until_row(&self, id: &RunId, is_it: impl Fn(&RunRow) -> bool) {
        for _ in 0..2000 {
            if is_it(&self.row(id).await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("timed out: {:?}", self.row(id).await);
    }

    /// Waits until the run has ended and is cleaned up. Returns how it ended.
    async fn ended(&self, id: &RunId) -> (RunStatus, String) {
        self.until_row(id, |row| row.status.is_terminal()).await;
        for _ in 0..2000 {
            if self.store.cleanup_done(id).await.unwrap() == Some(true) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.store.cleanup_done(id).await.unwrap(), Some(true), "{id} is not cleaned up");
        self.world.assert_disposed(id);
        let row = self.row(id).await;
        (row.status, row.reason.unwrap())
    }
}
