//! What both maps promise, told once and tried with each. Redis is a real one, started here.

#[path = "../../../tests/support/redis.rs"]
mod redis_server;

use std::sync::Arc;
use std::time::Duration;

use super::{EmbeddedMap, Entry, LockError, RedisMap, SessionMap};
use crate::clock::Timestamp;
use crate::sessions::owner::{Owner, OwnerKind};
use redis_server::RedisServer;

const SOON: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(30);

fn owner(id: &str) -> Owner {
    Owner::run(id).unwrap()
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
}

async fn entries_come_and_go(map: &dyn SessionMap) {
    let run = owner("comes-and-goes");
    assert_eq!(map.get(&run).await, None);
    map.put(&run, &entry("i1", "here"), None).await;
    assert_eq!(map.get(&run).await, Some(entry("i1", "here")));
    map.remove(&run, "here", Some("i2")).await;
    assert!(map.get(&run).await.is_some(), "another sandbox was meant");
    map.put(&run, &entry("i2", "here"), Some(Timestamp::now().plus(LONG))).await;
    map.remove(&run, "here", Some("i2")).await;
    assert_eq!(map.get(&run).await, None);
    map.put(&run, &entry("i3", "here"), Some(Timestamp::now().plus(SOON))).await;
    assert!(map.get(&run).await.is_some());
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(map.get(&run).await, None, "its time is over");
}

async fn an_entry_of_another_server_is_left_alone(map: &dyn SessionMap) {
    let run = owner("elsewhere");
    map.put(&run, &entry("i1", "there"), None).await;
    map.put(&run, &entry("i2", "here"), None).await;
    map.remove(&run, "here", None).await;
    let found = map.get(&run).await.unwrap();
    assert_eq!(found, entry("i1", "there"));
    assert!(found.is_held_by_another("here") && !found.is_held_by_another("there"));
    map.remove(&run, "there", None).await;
    assert_eq!(map.get(&run).await, None);
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
        map.put(&Owner::parse(kind, "same").unwrap(), &entry(&format!("i{n}"), "here"), None).await;
    }
    for (n, kind) in OwnerKind::ALL.into_iter().enumerate() {
        let owner = Owner::parse(kind, "same").unwrap();
        assert_eq!(map.get(&owner).await.unwrap().sandbox, format!("i{n}"));
        map.remove(&owner, "here", None).await;
    }
}

#[tokio::test]
async fn the_embedded_map_keeps_its_promises() {
    keeps_its_promises(Arc::new(EmbeddedMap::default())).await;
}

/// S1.6
#[tokio::test]
async fn redis_keeps_the_same_promises() {
    let server = RedisServer::start();
    keeps_its_promises(Arc::new(RedisMap::new(&server.url()).unwrap())).await;
}

/// S1.2, S1.16: what others read.
#[tokio::test]
async fn redis_has_the_keys_that_others_read() {
    let server = RedisServer::start();
    let map = RedisMap::new(&server.url()).unwrap();
    let run = owner("run-1");
    let until = Some(Timestamp::now().plus(Duration::from_secs(3600)));
    map.put(&run, &entry("isandbox", "here"), until).await;
    let hashes = [("a/b.csv".to_owned(), Some("0cc1".to_owned())), ("gone".to_owned(), None)];
    map.put_hashes(&run, &hashes, until).await;
    assert_eq!(server.ask(&["GET", "raro:e2b_session:run-1"]), "isandbox");
    let left: u64 = server.ask(&["TTL", "raro:e2b_session:run-1"]).parse().unwrap();
    assert!((3500..=3600).contains(&left), "{left}");
    assert_eq!(server.ask(&["GET", "raro:e2b_files:run-1:a/b.csv"]), "0cc1");
    // Other code may write the same key; then no server has it.
    server.ask(&["SETEX", "raro:e2b_session:run-2", "3600", "iother"]);
    assert_eq!(map.get(&owner("run-2")).await, Some(Entry { sandbox: "iother".to_owned(), server: None }));
}

#[tokio::test]
async fn a_redis_that_is_gone_holds_up_nobody_and_is_used_again_when_it_is_back() {
    let mut server = RedisServer::start();
    let map = RedisMap::new(&server.url()).unwrap();
    let run = owner("run-1");
    map.put(&run, &entry("i1", "here"), None).await;
    let before = map.gaps();
    server.stop();
    map.put(&run, &entry("i2", "here"), None).await;
    assert_eq!(map.get(&run).await, None);
    let token = map.lock(&run, LONG).await.unwrap();
    map.unlock(&run, token).await;
    assert!(map.gaps() > before, "what was missed is noticed");
    server.start_again();
    let deadline = std::time::Instant::now() + LONG;
    while map.get(&run).await.is_none() {
        assert!(std::time::Instant::now() < deadline, "it is not used again");
        map.put(&run, &entry("i3", "here"), None).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn an_address_that_is_none_is_refused_without_its_password() {
    let error = RedisMap::new("nonsense://user:secret@host").unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}
