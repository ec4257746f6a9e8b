//! The promises of both maps, tested with each. Redis is a real server that is started here.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::testing::redis::RedisServer;
use isopod_store::{Owner, OwnerKind, TeamId, TeamOwner};

use super::{EmbeddedMap, Entry, LockError, RedisMap, SessionMap, Unreachable};

const SOON: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(30);

fn first() -> TeamId {
    TeamId("first".to_owned())
}

fn owner(id: &str) -> TeamOwner {
    TeamOwner::new(&first(), &Owner::run(id).unwrap())
}

fn of_kind(kind: OwnerKind, id: &str) -> TeamOwner {
    TeamOwner::new(&first(), &Owner::parse(kind, id).unwrap())
}

fn entry(sandbox: &str, server: &str) -> Entry {
    Entry { sandbox: sandbox.to_owned(), server: Some(server.to_owned()) }
}

async fn keeps_its_promises(map: Arc<dyn SessionMap>) {
    entries_come_and_go(&*map).await;
    an_entry_of_another_server_is_left_alone(&*map).await;
    one_at_a_time_has_the_lock(&map).await;
    a_lock_that_nobody_gives_back_is_given_up(&*map).await;
    kinds_of_owners_are_kept_apart(&*map).await;
    teams_are_kept_apart(&*map).await;
}

async fn entries_come_and_go(map: &dyn SessionMap) {
    let run = owner("comes-and-goes");
    assert_eq!(map.get(&run).await, Ok(None));
    map.put(&run, &entry("i1", "here"), None).await;
    assert_eq!(map.get(&run).await, Ok(Some(entry("i1", "here"))));
    map.remove(&run, "here", Some("i2")).await;
    assert!(map.get(&run).await.unwrap().is_some(), "another sandbox was meant");
    map.put(&run, &entry("i2", "here"), Some(Timestamp::now().plus(LONG))).await;
    map.remove(&run, "here", Some("i2")).await;
    assert_eq!(map.get(&run).await, Ok(None));
    map.put(&run, &entry("i3", "here"), Some(Timestamp::now().plus(SOON))).await;
    assert!(map.get(&run).await.unwrap().is_some());
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(map.get(&run).await, Ok(None), "its time is over");
}

async fn an_entry_of_another_server_is_left_alone(map: &dyn SessionMap) {
    let run = owner("elsewhere");
    map.put(&run, &entry("i1", "there"), None).await;
    map.put(&run, &entry("i2", "here"), None).await;
    map.remove(&run, "here", None).await;
    let found = map.get(&run).await.unwrap().unwrap();
    assert_eq!(found, entry("i1", "there"));
    assert!(found.is_held_by_another("here") && !found.is_held_by_another("there"));
    map.remove(&run, "there", None).await;
    assert_eq!(map.get(&run).await, Ok(None));
}

async fn one_at_a_time_has_the_lock(map: &Arc<dyn SessionMap>) {
    let run = owner("locked");
    let token = map.lock(&run, LONG).await.unwrap();
    let waiting = tokio::spawn({
        let (map, run) = (Arc::clone(map), run.clone());
        async move { map.lock(&run, LONG).await.unwrap() }
    });
    tokio::time::sleep(SOON).await;
    assert!(!waiting.is_finished(), "two had it");
    assert!(map.lock(&owner("other"), SOON).await.is_ok(), "each owner has its own");
    map.unlock(&run, token.clone()).await;
    let second = waiting.await.unwrap();
    map.unlock(&run, token).await;
    assert_eq!(map.lock(&run, SOON).await, Err(LockError::Busy { waited: SOON }), "who no longer has it gave it back");
    map.unlock(&run, second).await;
    let third = map.lock(&run, SOON).await.unwrap();
    map.unlock(&run, third).await;
}

async fn a_lock_that_nobody_gives_back_is_given_up(map: &dyn SessionMap) {
    let run = owner("forgotten");
    let _of_a_server_that_died = map.lock(&run, SOON).await.unwrap();
    let token = map.lock(&run, LONG).await.unwrap();
    map.unlock(&run, token).await;
}

async fn kinds_of_owners_are_kept_apart(map: &dyn SessionMap) {
    for (n, kind) in OwnerKind::ALL.into_iter().enumerate() {
        map.put(&of_kind(kind, "same"), &entry(&format!("i{n}"), "here"), None).await;
    }
    for (n, kind) in OwnerKind::ALL.into_iter().enumerate() {
        let owner = of_kind(kind, "same");
        assert_eq!(map.get(&owner).await.unwrap().unwrap().sandbox, format!("i{n}"));
        map.remove(&owner, "here", None).await;
    }
}

async fn teams_are_kept_apart(map: &dyn SessionMap) {
    for kind in OwnerKind::ALL {
        let mine = of_kind(kind, "shared");
        // Team ids may contain any separator of the keys.
        let others = ["second", "shared", "a:b@c"].map(|team| TeamOwner::new(&TeamId(team.to_owned()), &mine.owner));
        map.put(&mine, &entry("imine", "here"), None).await;
        let lock = map.lock(&mine, LONG).await.unwrap();
        for (n, theirs) in others.iter().enumerate() {
            assert_eq!(map.get(theirs).await, Ok(None));
            let lock = map.lock(theirs, SOON).await.expect("another team's lock is another one");
            map.put(theirs, &entry(&format!("i{n}"), "here"), None).await;
            map.unlock(theirs, lock).await;
        }
        assert_eq!(map.get(&mine).await.unwrap().unwrap().sandbox, "imine");
        for (n, theirs) in others.iter().enumerate() {
            assert_eq!(map.get(theirs).await.unwrap().unwrap().sandbox, format!("i{n}"));
            map.remove(theirs, "here", None).await;
        }
        assert_eq!(map.get(&mine).await.unwrap().unwrap().sandbox, "imine");
        map.unlock(&mine, lock).await;
        map.remove(&mine, "here", None).await;
    }
}

#[tokio::test]
async fn the_embedded_map_keeps_its_promises() {
    keeps_its_promises(Arc::new(EmbeddedMap::default())).await;
}

#[tokio::test]
async fn redis_keeps_the_same_promises() {
    let server = RedisServer::start();
    keeps_its_promises(Arc::new(RedisMap::new(&server.url(), first()).unwrap())).await;
}

#[tokio::test]
async fn redis_has_the_keys_that_others_read() {
    let server = RedisServer::start();
    let map = RedisMap::new(&server.url(), first()).unwrap();
    let run = owner("run-1");
    let until = Some(Timestamp::now().plus(Duration::from_secs(3600)));
    map.put(&run, &entry("isandbox", "here"), until).await;
    let hashes = [("a/b.csv".to_owned(), Some("0cc1".to_owned())), ("gone".to_owned(), None)];
    map.put_hashes(&run, &hashes, until).await;
    assert_eq!(server.ask(&["GET", "raro:e2b_session:run-1"]), "isandbox");
    for key in ["raro:e2b_session:run-1", "raro:e2b_files:run-1:a/b.csv"] {
        let left: u64 = server.ask(&["TTL", key]).parse().unwrap();
        assert!((3500..=3600).contains(&left), "{key} expires in {left} s");
    }
    assert_eq!(server.ask(&["GET", "raro:e2b_files:run-1:a/b.csv"]), "0cc1");
    // A run of the same name in another team writes none of these keys.
    let theirs = TeamOwner::new(&TeamId("second".to_owned()), &run.owner);
    map.put(&theirs, &entry("itheirs", "here"), until).await;
    map.put_hashes(&theirs, &[("a/b.csv".to_owned(), Some("ffff".to_owned()))], until).await;
    assert_eq!(server.ask(&["GET", "raro:e2b_session:run-1"]), "isandbox");
    assert_eq!(server.ask(&["GET", "raro:e2b_files:run-1:a/b.csv"]), "0cc1");
    assert_eq!(server.ask(&["GET", "isopod:session:run/run-1@second"]), "itheirs");
    assert_eq!(server.ask(&["GET", "isopod:session_files:run/run-1@second/a/b.csv"]), "ffff");
    // Other code may write the same key. Then no server holds it.
    server.ask(&["SETEX", "raro:e2b_session:run-2", "3600", "iother"]);
    assert_eq!(map.get(&owner("run-2")).await, Ok(Some(Entry { sandbox: "iother".to_owned(), server: None })));
}

#[tokio::test]
async fn a_redis_that_is_gone_holds_up_nobody_and_is_used_again_when_it_is_back() {
    let mut server = RedisServer::start();
    let map = RedisMap::new(&server.url(), first()).unwrap();
    let run = owner("run-1");
    map.put(&run, &entry("i1", "here"), None).await;
    let before = map.gaps();
    server.stop();
    map.put(&run, &entry("i2", "here"), None).await;
    assert_eq!(map.get(&run).await, Err(Unreachable), "it may have an entry");
    let token = map.lock(&run, LONG).await.unwrap();
    map.unlock(&run, token).await;
    assert!(map.gaps() > before, "what was missed is noticed");
    server.start_again();
    let deadline = std::time::Instant::now() + LONG;
    while !matches!(map.get(&run).await, Ok(Some(_))) {
        assert!(std::time::Instant::now() < deadline, "it is not used again");
        map.put(&run, &entry("i3", "here"), None).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn an_address_that_is_none_is_refused_without_its_password() {
    let error = RedisMap::new("nonsense://user:secret@host", first()).unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}
