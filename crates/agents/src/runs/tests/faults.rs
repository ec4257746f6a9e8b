//! A server that is killed at every transition, and hundreds of runs that are killed at random ones.

use std::sync::atomic::Ordering;

use super::*;

/// A batch of workflows to start.
struct Batch {
    flows: Vec<String>,
    /// The index of a run to stop.
    stopped: Option<usize>,
}

/// One server after another on the same store, each killed at its step, until one finishes.
fn run_lives(batch: &Batch, kill_at: &mut dyn FnMut() -> Option<i64>) -> Arc<World> {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(World::default());
    let mut is_first = true;
    loop {
        let step = kill_at();
        let killer = step.map_or_else(Killer::never, Killer::at);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            tokio::select! {
                () = killer.has_killed() => false,
                () = live(dir.path(), &world, Arc::clone(&killer), is_first.then_some(batch)) => true,
            }
        });
        // This drops everything that the server had in memory, as kill -9 would.
        drop(runtime);
        is_first = false;
        if ended {
            return world;
        }
    }
}

async fn live(dir: &Path, world: &Arc<World>, killer: Arc<Killer>, batch: Option<&Batch>) {
    let server = TestServer::begin_with(dir, world, killer, None).await;
    for (place, flow) in batch.into_iter().flat_map(|batch| &batch.flows).enumerate() {
        let id = server.start(flow).await;
        if batch.and_then(|batch| batch.stopped) == Some(place) {
            // It may have ended before it gets this.
            let _ = server.command(&id, Command::Stop).await;
        }
    }
    let all = RunQueryAll::of(&server).await;
    for row in all {
        let (status, _) = server.ended(&row.id).await;
        let nodes = server.store.run_nodes(&row.id).await.unwrap();
        let all_done = nodes.iter().all(|node| node.state == NodeState::Done);
        assert_eq!(status == RunStatus::Completed, all_done, "{:?} {nodes:?}", server.row(&row.id).await);
    }
    server.store.close().await;
}

struct RunQueryAll;

impl RunQueryAll {
    async fn of(server: &TestServer) -> Vec<RunRow> {
        let query = isopod_store::RunQuery { team: server.team.clone(), status: None, limit: 1000, offset: 0 };
        server.store.list_runs(&query).await.unwrap()
    }
}

/// Kills the server once at each step: before and after each write and each disposal.
#[test]
fn a_server_killed_at_any_transition_loses_nothing() {
    let completes = "nodes: [{id: a, command: ok}, {id: b, command: ok, depends_on: [a]}, {id: c, command: fail 1, \
                     retries: 1, depends_on: [a]}, {id: d, command: ok, depends_on: [b, c]}]";
    let fails = "nodes: [{id: a, command: ok}, {id: b, command: fail, depends_on: [a]}, {id: c, command: ok, \
                 depends_on: [b]}]";
    let goes_back = "nodes: [{id: a, command: ok}, {id: b, command: fail 1, retries: 2, checkpoint: true}, {id: c, command: \
                     ok}, {id: d, command: ok, depends_on: [b], checkpoint: true}]";
    let is_stopped = "nodes: [{id: a, command: ok}, {id: b, command: hang, depends_on: [a], timeout: 0.02}]";
    for (flow, stopped) in [(completes, None), (fails, None), (goes_back, None), (is_stopped, Some(0))] {
        for step in 0.. {
            let batch = Batch { flows: vec![flow.to_owned()], stopped };
            let mut lives = 0;
            run_lives(&batch, &mut || {
                lives += 1;
                (lives == 1).then_some(step)
            });
            if lives == 1 {
                assert!(step >= 6, "{flow} has more transitions than {step}");
                break;
            }
        }
    }
}

/// The kill steps follow from the seed, so that a failure can be reproduced.
#[test]
fn hundreds_of_runs_on_a_server_that_is_killed_again_and_again_are_all_cleaned_up_once() {
    let batches = if std::env::var_os("ISOPOD_FULL").is_some() { 40 } else { 10 };
    for seed in 1..=batches {
        let mut dice = Dice(seed);
        let flows = (0..20).map(|_| random_flow(&mut dice)).collect();
        let batch = Batch { flows, stopped: Some(dice.below(20)) };
        let mut kills = 0;
        let mut kill_at = || {
            kills += 1;
            (kills <= 6).then(|| i64::try_from(dice.below(80)).unwrap())
        };
        let world = run_lives(&batch, &mut kill_at);
        world.failing_disposals.store(0, Ordering::Relaxed);
        assert!(kills >= 2, "seed {seed} was never killed");
    }
}

fn random_flow(dice: &mut Dice) -> String {
    let count = 1 + dice.below(7);
    let node = |place: usize, dice: &mut Dice| {
        let command = ["ok", "ok", "ok", "ok", "fail 1", "fail 2", "fail"][dice.below(7)];
        let parents: Vec<String> =
            (0..place).filter(|_| dice.below(3) == 0).map(|parent| format!("n{parent}")).collect();
        let retries = dice.below(4);
        format!("{{id: n{place}, command: {command}, retries: {retries}, depends_on: [{}]}}", parents.join(", "))
    };
    let nodes: Vec<String> = (0..count).map(|place| node(place, dice)).collect();
    let on_failure = ["stop", "continue"][dice.below(2)];
    format!("on_failure: {on_failure}\nnodes: [{}]", nodes.join(", "))
}

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut bits = self.0;
        bits ^= bits >> 31;
        usize::try_from(bits % u64::try_from(limit).unwrap()).unwrap()
    }
}
