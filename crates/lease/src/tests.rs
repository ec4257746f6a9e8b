//! Tests of the promises, with a holder whose records and sandboxes are in memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isopod_store::TeamId;
use isopod_store::secrets::new_sandbox_id;
use isopod_wire::SandboxId;

use super::*;

/// The state that all calls of one holder share.
#[derive(Debug, Default)]
struct World {
    /// The record: the sandbox and how often it has been replaced.
    record: Mutex<Option<(SandboxId, u32)>>,
    alive: Mutex<Vec<SandboxId>>,
    opened: AtomicUsize,
    open_now: AtomicUsize,
    created: AtomicUsize,
    refuses_create: AtomicBool,
    refuses_record: AtomicBool,
    is_slow_to_answer: AtomicBool,
}

#[derive(Clone, Debug)]
struct Caller<const REMEMBERED: bool>(Arc<World>);

#[derive(Debug, PartialEq, Eq)]
enum Failed {
    Create,
    Record,
    Ended(LeaseEnded),
}

impl World {
    fn alive(&self) -> Vec<SandboxId> {
        self.alive.lock().unwrap().clone()
    }

    fn kill_all(&self) -> bool {
        !std::mem::take(&mut *self.alive.lock().unwrap()).is_empty()
    }
}

impl<const REMEMBERED: bool> Holder for Caller<REMEMBERED> {
    type Record = ();
    type Sandbox = SandboxId;
    type Error = Failed;

    const IS_REMEMBERED: bool = REMEMBERED;

    fn name(&self) -> LeaseName {
        LeaseName { team: TeamId("t".to_owned()), key: "one".to_owned() }
    }

    fn id(sandbox: &SandboxId) -> &SandboxId {
        sandbox
    }

    fn ended(&self, why: LeaseEnded) -> Failed {
        Failed::Ended(why)
    }

    async fn reuse(&self, id: &SandboxId) -> Result<Option<SandboxId>, Failed> {
        if self.0.is_slow_to_answer.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(self.0.alive().into_iter().find(|alive| alive == id))
    }

    async fn open(&self) -> Result<Opened<(), SandboxId>, Failed> {
        self.0.opened.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.0.open_now.fetch_add(1, Ordering::SeqCst), 0, "one caller at a time");
        let record = self.0.record.lock().unwrap().clone();
        let (recorded, restarts) = record.map_or((None, 0), |(id, restarts)| (Some(id), restarts));
        let live = recorded.clone().filter(|id| self.0.alive().contains(id));
        Ok(Opened { record: (), live, recorded, restarts })
    }

    async fn create(&self, (): &()) -> Result<SandboxId, Failed> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if self.0.refuses_create.load(Ordering::SeqCst) {
            return Err(Failed::Create);
        }
        let id = new_sandbox_id();
        self.0.created.fetch_add(1, Ordering::SeqCst);
        self.0.alive.lock().unwrap().push(id.clone());
        Ok(id)
    }

    async fn record(&self, (): &(), leased: &Leased<SandboxId>) -> Result<(), Failed> {
        if self.0.refuses_record.load(Ordering::SeqCst) {
            return Err(Failed::Record);
        }
        *self.0.record.lock().unwrap() = Some((leased.sandbox.clone(), leased.restarts));
        Ok(())
    }

    async fn discard(&self, sandbox: SandboxId) {
        self.0.alive.lock().unwrap().retain(|alive| *alive != sandbox);
    }

    async fn close(&self, (): ()) {
        self.0.open_now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<const REMEMBERED: bool> EndLease for Caller<REMEMBERED> {
    type Ended = bool;

    async fn end(&self) -> Result<bool, Failed> {
        assert_eq!(self.0.open_now.load(Ordering::SeqCst), 0, "nobody makes one meanwhile");
        *self.0.record.lock().unwrap() = None;
        Ok(self.0.kill_all())
    }
}

type Remembered = Caller<true>;
type Forgotten = Caller<false>;

async fn race<H: Holder + Clone>(leases: &Leases, holder: &H) -> Vec<Result<Leased<H::Sandbox>, H::Error>> {
    let calls = (0..50).map(|_| {
        let (leases, holder) = (leases.clone(), holder.clone());
        tokio::spawn(async move { leases.hold(holder).await })
    });
    futures::future::join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn callers_that_race_share_one_sandbox() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    for result in race(&leases, &Caller::<true>(Arc::clone(&world))).await {
        assert_eq!(result.unwrap().sandbox, world.alive()[0]);
    }
    assert_eq!((world.created.load(Ordering::SeqCst), world.opened.load(Ordering::SeqCst)), (1, 1));

    let world = Arc::new(World::default());
    let other = Leases::default();
    for result in race(&other, &Caller::<false>(Arc::clone(&world))).await {
        assert_eq!(result.unwrap().sandbox, world.alive()[0]);
    }
    assert_eq!((world.created.load(Ordering::SeqCst), world.opened.load(Ordering::SeqCst)), (1, 50));
    assert_eq!(other.entries_in_use(), 0, "nothing is remembered of a holder that ends by itself");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_nothing_half_made() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let left = tokio::time::timeout(Duration::from_millis(10), leases.hold(Caller::<false>(Arc::clone(&world))));
    assert!(left.await.is_err());
    let found = leases.hold(Caller::<false>(Arc::clone(&world))).await.unwrap();
    assert_eq!((world.alive(), found.restarts), (vec![found.sandbox.clone()], 0));
    assert_eq!(world.record.lock().unwrap().as_ref().unwrap().0, found.sandbox);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_gone_is_replaced_and_one_caller_is_told() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let holder: Remembered = Caller(Arc::clone(&world));
    let first = leases.hold(holder.clone()).await.unwrap();
    assert_eq!((first.replaced, first.restarts), (None, 0));
    world.kill_all();
    let results: Vec<_> = race(&leases, &holder).await.into_iter().map(Result::unwrap).collect();
    let told: Vec<_> = results.iter().filter_map(|leased| leased.replaced.clone()).collect();
    assert_eq!(told, [first.sandbox]);
    assert!(results.iter().all(|leased| leased.restarts == 1 && leased.sandbox == world.alive()[0]));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_cannot_be_recorded_is_removed() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let holder: Remembered = Caller(Arc::clone(&world));
    world.refuses_record.store(true, Ordering::SeqCst);
    assert_eq!(leases.hold(holder.clone()).await.unwrap_err(), Failed::Record);
    assert_eq!((world.alive(), leases.entries_in_use()), (vec![], 0));
    world.refuses_record.store(false, Ordering::SeqCst);
    assert_eq!(leases.hold(holder).await.unwrap().sandbox, world.alive()[0]);
}

/// The holder already has a sandbox and must not lose it because a record cannot be written now.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_was_there_before_is_kept() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let holder: Forgotten = Caller(Arc::clone(&world));
    let first = leases.hold(holder.clone()).await.unwrap();
    world.refuses_record.store(true, Ordering::SeqCst);
    assert_eq!(leases.hold(holder).await.unwrap_err(), Failed::Record);
    assert_eq!(world.alive(), [first.sandbox]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_create_leaves_nothing_and_the_next_call_tries_again() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let holder: Remembered = Caller(Arc::clone(&world));
    world.refuses_create.store(true, Ordering::SeqCst);
    assert!(race(&leases, &holder).await.into_iter().all(|result| result.unwrap_err() == Failed::Create));
    assert_eq!((world.alive(), leases.entries_in_use()), (vec![], 0));
    world.refuses_create.store(false, Ordering::SeqCst);
    assert_eq!(leases.hold(holder).await.unwrap().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_while_the_lease_is_ended_gets_no_new_sandbox() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let holder: Remembered = Caller(Arc::clone(&world));
    let waiting = race(&leases, &holder);
    let ending = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        leases.end(holder.clone()).await
    };
    let (results, ended) = tokio::join!(waiting, ending);
    assert_eq!(ended, Ok(true));
    assert_eq!(world.alive(), vec![]);
    let had_one = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(had_one, 1, "the one that was making it when the end was asked for");
    assert!(results.into_iter().filter_map(Result::err).all(|error| error == Failed::Ended(LeaseEnded::Meanwhile)));
    assert_eq!(leases.end(holder.clone()).await, Ok(false));
    assert_eq!(leases.entries_in_use(), 0);
    assert!(leases.hold(holder).await.is_ok(), "a later call may have one again");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_while_the_remembered_sandbox_is_asked_counts() {
    let (leases, world) = (Leases::default(), Arc::new(World::default()));
    let holder: Remembered = Caller(Arc::clone(&world));
    leases.hold(holder.clone()).await.unwrap();
    world.is_slow_to_answer.store(true, Ordering::SeqCst);
    let ending = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        leases.end(holder.clone()).await
    };
    let (held, ended) = tokio::join!(leases.hold(holder.clone()), ending);
    assert_eq!((held.unwrap_err(), ended), (Failed::Ended(LeaseEnded::Meanwhile), Ok(true)));
    assert_eq!((world.alive(), leases.entries_in_use()), (vec![], 0));
}
