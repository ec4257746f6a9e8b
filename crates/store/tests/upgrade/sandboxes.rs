//! Sandboxes with their logs, samples and events, webhooks, and idempotency keys.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{
    Claim, Direction, Ending, Event, EventQuery, EventType, Level, LogLine, LogQuery, NetworkSettings, Resource,
    Sample, SandboxRow, State, Store, VolumeMount, Webhook,
};
use isopod_wire::node::{PauseMode, Secret};
use serde_json::json;

use crate::values::{assert_same, at, id, limits, team, text};

pub(crate) async fn check(store: &Store) {
    check_states(store).await;
    check_all_fields(store).await;
    check_logs(store).await;
    check_samples(store).await;
    check_events(store).await;
    check_webhooks(store).await;
    check_idempotency(store).await;
}

fn row(name: &str, number: i64, state: State) -> SandboxRow {
    SandboxRow {
        id: id(name),
        team: team(),
        template: "tpl0web".to_owned(),
        alias: text("web"),
        state,
        execution: Some(name.replacen('i', "x", 1).parse().unwrap()),
        created_at: at(1000 + number),
        started_at: at(1000 + number).plus(Duration::from_millis(500)),
        ends_at: at(4600 + number),
        ended_at: None,
        timeout: Duration::from_secs(3600),
        auto_pause: false,
        auto_pause_memory: true,
        auto_resume: false,
        allow_internet: None,
        network: NetworkSettings::default(),
        metadata: BTreeMap::new(),
        limits: limits(),
        access_token: Some(Secret(format!("access-{name}"))),
        traffic_token: None,
        session_key: None,
        volume_mounts: Vec::new(),
    }
}

async fn check_states(store: &Store) {
    let ended = |name, number, how| SandboxRow {
        ended_at: Some(at(2000)),
        access_token: None,
        ..row(name, number, State::Ended(how))
    };
    let unborn = |row: SandboxRow| SandboxRow { execution: None, started_at: row.created_at, ..row };
    let wanted = [
        row("ipaused", 1, State::Paused(PauseMode::Memory)),
        row("istopped", 2, State::Paused(PauseMode::Filesystem)),
        ended("iended", 3, Ending::Timeout),
        row("iending", 4, State::Ending(Ending::Killed)),
        unborn(ended("ifailed", 5, Ending::CreateFailed)),
        unborn(row("icreating", 6, State::Creating)),
        ended("ilost", 7, Ending::OutOfMemory),
    ];
    for wanted in wanted {
        let found = store.find_sandbox(&team(), &wanted.id).await.unwrap().unwrap();
        assert_same(&found, &wanted);
        assert_eq!(found.access_token, wanted.access_token);
    }
    let live = store.live_sandboxes().await.unwrap();
    let live: Vec<&str> = live.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(live, ["irunning", "ipaused", "istopped", "iending", "icreating"]);
    let spawns = store.spawns_of("tpl0web").await.unwrap();
    assert_eq!((spawns.count, spawns.last_at), (6, Some(at(1007).plus(Duration::from_millis(500)))));
}

async fn check_all_fields(store: &Store) {
    let wanted = SandboxRow {
        auto_pause: true,
        auto_resume: true,
        allow_internet: Some(false),
        network: NetworkSettings {
            allow_public_traffic: Some(false),
            allow_out: vec!["10.1.0.0/16".to_owned()],
            deny_out: vec!["10.1.2.0/24".to_owned()],
            mask_request_host: text("localhost:${PORT}"),
        },
        metadata: [("owner", "ada"), ("söme", "\"quoted\" 'text'")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        traffic_token: Some(Secret("traffic-irunning".to_owned())),
        session_key: text("isopod:run/run-1"),
        volume_mounts: vec![VolumeMount { name: "data".to_owned(), path: "/mnt/data".to_owned() }],
        ..row("irunning", 0, State::Running)
    };
    let found = store.find_session(&team(), "isopod:run/run-1").await.unwrap().unwrap();
    assert_same(&found, &wanted);
    assert_eq!(found.access_token, wanted.access_token);
    assert_eq!(found.traffic_token, wanted.traffic_token);
    store.check_here(Resource::Sandbox(&wanted.id, None)).await.unwrap();
    assert_eq!(store.output_position(&wanted.incarnation().unwrap()).await.unwrap(), 4321);
}

async fn check_logs(store: &Store) {
    let all = LogQuery { from: None, direction: Direction::Forward, limit: 10, least: Level::Debug, search: None };
    let line = |seconds, level, message: &str, stream: &str| LogLine {
        timestamp: at(seconds),
        level,
        message: message.to_owned(),
        fields: [("stream".to_owned(), stream.to_owned())].into(),
    };
    let wanted = vec![
        line(1010, Level::Warn, "the disk is nearly full", "system"),
        line(1011, Level::Info, "first line", "stdout"),
        line(1011, Level::Info, "second line", "stdout"),
        line(1012, Level::Error, "it's \u{1f980}", "stderr"),
    ];
    assert_same(&store.list_logs(&id("irunning"), &all).await.unwrap(), &wanted);
}

async fn check_samples(store: &Store) {
    let sample = |seconds, cpu_percent| Sample {
        at: at(seconds),
        cpu_count: 2,
        cpu_percent,
        mem_used: 100 << 20,
        mem_total: 768 << 20,
        mem_cache: 3 << 20,
        disk_used: 7 << 30,
        disk_total: 9 << 30,
    };
    let samples = store.list_samples(&id("irunning"), at(0), at(9999), 10).await.unwrap();
    assert_eq!(samples, [sample(1010, 12.5), sample(1015, 0.125)]);
}

async fn check_events(store: &Store) {
    let all = EventQuery { team: team(), sandbox: None, types: Vec::new(), ascending: true, offset: 0, limit: 10 };
    let event = |number: i64, kind: EventType| Event {
        id: format!("event-{number}"),
        team: team(),
        sandbox: "irunning".to_owned(),
        execution: text("xrunning"),
        template: "tpl0web".to_owned(),
        kind: kind.text().to_owned(),
        at: at(100 + number),
        data: json!({"number": number}),
    };
    let wanted = vec![event(0, EventType::Created), event(1, EventType::Updated), event(2, EventType::Killed)];
    assert_same(&store.list_events(&all).await.unwrap(), &wanted);
}

async fn check_webhooks(store: &Store) {
    let webhook = |name: &str, enabled| Webhook {
        id: format!("webhook-{name}"),
        team: team(),
        name: name.to_owned(),
        url: format!("https://example.com/{name}"),
        enabled,
        events: vec![EventType::Created, EventType::Killed],
        secret: Secret(format!("secret-{name}")),
        created_at: at(1500),
    };
    let webhooks = store.list_webhooks(&team()).await.unwrap();
    assert_same(&webhooks, &vec![webhook("off", false), webhook("on", true)]);
    assert_eq!(webhooks[1].secret, Secret("secret-on".to_owned()));
    // One delivery succeeded, and one is to be retried.
    let due = store.due_deliveries(&team(), Timestamp::now(), 10, &HashSet::new()).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].webhook.as_str(), due[0].attempts), ("webhook-on", 1));
    let body: serde_json::Value = serde_json::from_str(&due[0].body).unwrap();
    assert_eq!((&body["id"], &body["eventLabel"]), (&json!("event-2"), &json!("killed")));
}

async fn check_idempotency(store: &Store) {
    let claim = async |key, request| store.claim_key(&team(), key, &[request; 32]).await.unwrap();
    assert_eq!(claim("create-1", 1).await, Claim::Done(id("irunning")));
    assert_eq!(claim("create-1", 2).await, Claim::Mismatch);
    assert_eq!(claim("create-2", 2).await, Claim::Unfinished);
}

/// A trigger counts the uses.
pub(crate) async fn check_that_uses_of_templates_are_counted(store: &Store) {
    let mut new = row("inew", 0, State::Creating);
    store.insert_sandbox(&new).await.unwrap();
    new.state = State::Running;
    store.save_sandbox(&new).await.unwrap();
    assert_eq!(store.spawns_of("tpl0web").await.unwrap().count, 7);
}
