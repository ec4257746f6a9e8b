//! Random calls on the file system and on a model must have the same results, even across crashes and with a failing
//! store. In the end, the bucket alone must show the same to a process that never saw the calls.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

mod support;

use std::sync::Arc;

use isopod_storage::{DirectoryStore, FsError, Sync, Vfs};
use support::model::{Entry, Model, Step, perform, snapshot};
use support::{Flaky, Random, crash, quick};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

struct World {
    directory: tempfile::TempDir,
    store: Arc<Flaky>,
    running: Option<(Arc<Vfs>, Sync)>,
    /// The name of the state directory.
    state: &'static str,
}

impl World {
    fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bucket = DirectoryStore::open(&directory.path().join("bucket")).unwrap();
        let store = Flaky::new(bucket, seed);
        let mut world = Self { directory, store, running: None, state: "" };
        world.start("state");
        world
    }

    fn start(&mut self, state: &'static str) {
        self.state = state;
        let vfs = Vfs::open(self.store.clone(), quick(&self.directory.path().join(state))).unwrap();
        let sync = Sync::start(vfs.clone());
        self.running = Some((vfs, sync));
    }

    /// Like `kill -9`: nothing is finished, and nothing is sent. The process only closes its files.
    async fn crash(&mut self) {
        let (vfs, sync) = self.running.take().unwrap();
        sync.stop().await;
        self.store.quiet().await;
        crash(vfs, &self.directory.path().join(self.state)).await;
    }

    fn vfs(&self) -> &Arc<Vfs> {
        &self.running.as_ref().unwrap().0
    }

    async fn settle(&self) {
        let (vfs, sync) = self.running.as_ref().unwrap();
        let settled = tokio::time::timeout(std::time::Duration::from_secs(30), sync.settle()).await;
        assert!(settled.is_ok(), "something is never uploaded: {vfs:#?}");
    }
}

fn same(found: &std::collections::BTreeMap<String, Entry>, model: &Model, when: &str) {
    for (path, entry) in &model.entries {
        assert_eq!(found.get(path).map(brief), Some(brief(entry)), "{path} {when}");
        assert!(found.get(path) == Some(entry), "the bytes of {path} differ {when}");
    }
    for path in found.keys() {
        assert!(model.entries.contains_key(path), "{path} should not be there {when}");
    }
}

fn brief(entry: &Entry) -> String {
    match entry {
        Entry::File { mode, content, xattr } => format!("file {mode:o} {} {xattr:?}", content.len()),
        other => format!("{other:?}"),
    }
}

fn errno(error: &FsError) -> String {
    let number = error.errno();
    for (known, name) in [
        (rustix::io::Errno::NOENT, "ENOENT"),
        (rustix::io::Errno::EXIST, "EEXIST"),
        (rustix::io::Errno::NOTDIR, "ENOTDIR"),
        (rustix::io::Errno::ISDIR, "EISDIR"),
        (rustix::io::Errno::NOTEMPTY, "ENOTEMPTY"),
        (rustix::io::Errno::INVAL, "EINVAL"),
    ] {
        if number == known {
            return name.to_owned();
        }
    }
    format!("{error:?}")
}

/// Enables logs, for investigating a failure: `RUST_LOG=isopod_storage=trace`.
fn logs() {
    let asked = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer().with_test_writer();
    let lines = lines.with_filter(asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR)));
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

async fn run(seed: u64, steps: usize, failing: u32) {
    let mut random = Random(seed);
    let mut world = World::new(seed);
    let mut model = Model::default();
    logs();
    for index in 0..steps {
        world.store.fail(if random.below(2) == 0 { failing } else { 0 });
        let step = Step::random(&mut random);
        tracing::info!(index, ?step, "step");
        let expected = model.apply(&step).map_err(str::to_owned);
        let actual = perform(world.vfs(), &step).await.map_err(|error| errno(&error));
        assert_eq!(actual, expected, "seed {seed} step {index}: {step:?}");
        match random.below(60) {
            0 => {
                world.crash().await;
                world.start("state");
                same(&snapshot(world.vfs()).await, &model, &format!("after a crash at step {index}, seed {seed}"));
            }
            1..4 => same(&snapshot(world.vfs()).await, &model, &format!("at step {index}, seed {seed}")),
            4 => {
                world.store.fail(0);
                world.settle().await;
            }
            5..9 => tokio::time::sleep(std::time::Duration::from_millis(random.below(20))).await,
            _ => {}
        }
    }
    world.store.fail(0);
    world.settle().await;
    same(&snapshot(world.vfs()).await, &model, &format!("in the end, seed {seed}"));
    world.crash().await;
    world.start("another-state");
    same(&snapshot(world.vfs()).await, &model, &format!("from the bucket alone, seed {seed}"));
    world.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_give_what_the_model_gives() {
    for seed in 1..=12 {
        run(seed, 400, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_give_what_the_model_gives_over_a_failing_store() {
    for seed in 101..=108 {
        run(seed, 300, 30).await;
    }
}
