//! How long the service needs to find a sandbox by its id: in SQLite, in PostgreSQL, and in a Redis that would cache it.
//! Decision 22 has the numbers.
//!
//! `cargo run --release -p isopod-store --features testing --example lookup`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures, for people")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isopod_store::clock::Timestamp;
use isopod_store::service::{Quotas, ServiceSandbox, Status};
use isopod_store::testing::postgres::Postgres;
use isopod_store::testing::redis::RedisServer;
use isopod_store::{Store, TeamId};

const ROWS: usize = 10_000;
const LOOKUPS: usize = 2_000;

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("isopod.db")).await.unwrap();
    measure_store("SQLite", &store).await;
    store.close().await;
    let server = Postgres::start();
    let store = Store::connect(&server.url("postgres"), dir.path(), "example").await.unwrap();
    measure_store("PostgreSQL on a Unix socket", &store).await;
    store.close().await;
    measure_redis().await;
}

async fn measure_store(name: &str, store: &Store) {
    let team = store.ensure_team().await.unwrap();
    for number in 0..ROWS {
        store.insert_service_sandbox(&row(&team, number), &Quotas::default()).await.unwrap();
    }
    let mut taken = Vec::new();
    for number in 0..LOOKUPS {
        let id = id(number * 7919 % ROWS);
        let started = Instant::now();
        assert_eq!(store.find_service_sandbox(&id).await.unwrap().unwrap().id, id);
        taken.push(started.elapsed());
    }
    report(name, taken);
    let mut taken = Vec::new();
    for _ in 0..LOOKUPS {
        let started = Instant::now();
        store.team_quota(&team).await.unwrap();
        taken.push(started.elapsed());
    }
    report(&format!("{name}, a team's quota"), taken);
}

async fn measure_redis() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let value = "x".repeat(600);
    for number in 0..ROWS {
        redis::cmd("SET").arg(id(number)).arg(&value).exec_async(&mut connection).await.unwrap();
    }
    let mut taken = Vec::new();
    for number in 0..LOOKUPS {
        let started = Instant::now();
        let found: String = redis::cmd("GET").arg(id(number)).query_async(&mut connection).await.unwrap();
        taken.push(started.elapsed());
        assert_eq!(found.len(), value.len());
    }
    report("Redis on loopback", taken);
}

fn report(name: &str, mut taken: Vec<Duration>) {
    taken.sort_unstable();
    let (median, slow) = (taken[taken.len() / 2], taken[taken.len() * 99 / 100]);
    println!("{name}: median {median:?}, 99 % within {slow:?}");
}

fn id(number: usize) -> String {
    format!("i{number:019}")
}

fn row(team: &TeamId, number: usize) -> ServiceSandbox {
    ServiceSandbox {
        id: id(number),
        team: team.clone(),
        server: "example".to_owned(),
        agent: Some(format!("agent-{}", number % 100)),
        task: Some(format!("task-{number}")),
        sandbox: Some(format!("j{number:019}").parse().unwrap()),
        template: "base".to_owned(),
        status: Status::Running,
        reason: None,
        repo_url: Some("https://host.example/team/repository.git".to_owned()),
        branch_name: Some("main".to_owned()),
        cpu_millis: Some(2000),
        memory_mib: 1024,
        metadata: BTreeMap::from([("agent_id".to_owned(), "agent".to_owned())]),
        timeout: Duration::from_secs(3600),
        create_key: format!("create-{number}"),
        idempotency: None,
        created_at: Timestamp::now(),
        running_at: None,
        destroyed_at: None,
    }
}
