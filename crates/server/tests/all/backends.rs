//! The service's backends: the same suite on both, and the remote one with a bad network in between.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isopod_client::{Client, ClientConfig};
use isopod_control::ServeConfig;
use isopod_service::backend::{
    Backend, BackendState, BreakerConfig, BreakerState, Command, CreateKey, CreateSpec, ErrorKind, LocalBackend,
    RemoteBackend, ResilienceConfig, Resilient, Verb,
};
use isopod_store::TeamId;
use isopod_wire::{Bytes, Limits, SandboxId};

use support::server::{KEY, open_store};
use support::{FakeNode, Fault, FaultProxy, Server};

/// Waits that are short enough for a test. `call` is the time limit of one call.
fn patience(call: Duration) -> ResilienceConfig {
    ResilienceConfig {
        first_wait: Duration::from_millis(30),
        max_wait: Duration::from_millis(300),
        create_timeout: call,
        call_timeout: call,
        breaker: BreakerConfig { failures: 4, open_for: Duration::from_millis(300) },
        ..ResilienceConfig::default()
    }
}

const LONG: Duration = Duration::from_secs(30);

fn remote(url: &str, key: &str, call: Duration) -> Resilient {
    let config = ClientConfig {
        api_url: url.to_owned(),
        api_key: key.to_owned(),
        sandbox_url: Some(url.to_owned()),
        domain: None,
    };
    let backend = RemoteBackend::with_call_timeout(Client::new(config).unwrap(), call);
    Resilient::new(Arc::new(backend), patience(call))
}

/// A remote server keeps its own records, so any team works here.
async fn some_team() -> TeamId {
    let dir = tempfile::tempdir().unwrap();
    open_store(dir.path()).await.ensure_team().await.unwrap()
}

async fn spec() -> CreateSpec {
    CreateSpec::new(some_team().await, "base")
}

/// A server with a proxy in front, and the backend that goes through both.
async fn behind_proxy(call: Duration) -> (Server, FaultProxy, Resilient) {
    let server = Server::start().await;
    let proxy = FaultProxy::before(server.address).await;
    let backend = remote(&proxy.url(), KEY, call);
    (server, proxy, backend)
}

/// What every backend does, on sandboxes of `node`.
async fn suite(backend: &dyn Backend, node: &FakeNode, team: &TeamId) {
    let spec = |template: &str| CreateSpec::new(team.clone(), template);

    // First what is refused.
    let unknown = backend.create(&spec("nosuch")).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");
    let endless = CreateSpec { timeout: Duration::from_secs(1 << 40), ..spec("base") };
    assert_eq!(backend.create(&endless).await.unwrap_err().kind(), ErrorKind::Invalid);
    let bad_env = CreateSpec { env: BTreeMap::from([("A=B".into(), "x".into())]), ..spec("base") };
    assert_eq!(backend.create(&bad_env).await.unwrap_err().kind(), ErrorKind::Invalid);
    let nobody: SandboxId = "inobody".parse().unwrap();
    assert_eq!(backend.status(&nobody).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.pause(&nobody).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.resume(&nobody, LONG).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.set_timeout(&nobody, LONG).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.start(&nobody, Command::shell("x")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.read_file(&nobody, "/x", None).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!backend.destroy(&nobody).await.unwrap(), "what is gone is gone");
    assert_eq!(node.count(), 0);

    // A whole life.
    let words = BTreeMap::from([("agent".to_owned(), "a 1".to_owned())]);
    let env = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
    let wanted = CreateSpec { metadata: words.clone(), env, timeout: Duration::from_secs(600), ..spec("base") };
    let made = backend.create(&wanted).await.unwrap();
    assert_eq!((made.state, made.template.as_str()), (BackendState::Running, "base"));
    assert_eq!(made.ends_at.duration_since(made.started_at).unwrap().as_secs(), 600);
    assert_eq!(node.spec_of(made.id.as_str()).unwrap().env["GREETING"], "hello");
    assert!(node.spec_of(made.id.as_str()).unwrap().access_token.is_some(), "nobody else gets in");
    let again = backend.create(&wanted).await.unwrap();
    assert_eq!((again.id.as_str(), node.count()), (made.id.as_str(), 1), "the same key finds it");
    let other = backend.create(&spec("base")).await.unwrap();
    assert_eq!(backend.list(&words).await.unwrap().len(), 1);
    assert_eq!(backend.list(&BTreeMap::new()).await.unwrap().len(), 2);
    assert_eq!(backend.list(&wanted.key.label()).await.unwrap()[0].id, made.id);

    backend.pause(&made.id).await.unwrap();
    backend.pause(&made.id).await.unwrap();
    assert_eq!(backend.status(&made.id).await.unwrap().state, BackendState::Paused);
    assert_eq!(backend.set_timeout(&made.id, LONG).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(backend.start(&made.id, Command::shell("x")).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(backend.resume(&made.id, LONG).await.unwrap().state, BackendState::Running);
    backend.set_timeout(&made.id, Duration::from_secs(5000)).await.unwrap();
    let now = backend.status(&made.id).await.unwrap();
    assert!(now.ends_at.duration_since(now.started_at).unwrap().as_secs() > 4900);

    assert!(backend.destroy(&made.id).await.unwrap());
    assert!(!backend.destroy(&made.id).await.unwrap());
    assert_eq!(backend.status(&made.id).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.create(&wanted).await.unwrap_err().kind(), ErrorKind::Conflict, "its key is used up");
    assert_eq!(backend.abandon(&other_key(&other)).await.unwrap(), 1);
    assert_eq!(node.count(), 0);
}

fn other_key(sandbox: &isopod_service::backend::BackendSandbox) -> CreateKey {
    sandbox.metadata[isopod_service::backend::CREATE_LABEL].parse().unwrap()
}

#[tokio::test]
async fn the_local_backend_passes_the_suite() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(dir.path()).await;
    let team = store.ensure_team().await.unwrap();
    let node = FakeNode::new();
    let local = LocalBackend::open(&ServeConfig::new(store), Arc::clone(&node) as _).await.unwrap();
    let tiny = Limits { memory: Bytes(1), ..Limits::default() };
    let refused = local.create(&CreateSpec { limits: Some(tiny), ..CreateSpec::new(team.clone(), "base") }).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    let small = Limits { memory: Bytes::mib(256), ..Limits::default() };
    let made =
        local.create(&CreateSpec { limits: Some(small), ..CreateSpec::new(team.clone(), "base") }).await.unwrap();
    assert_eq!(node.spec_of(made.id.as_str()).unwrap().limits, small);
    local.destroy(&made.id).await.unwrap();
    let backend = Resilient::new(Arc::new(local), patience(LONG));
    suite(&backend, &node, &team).await;
}

#[tokio::test]
async fn a_team_without_a_place_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(dir.path()).await;
    let team = store.ensure_team().await.unwrap();
    let node = FakeNode::new();
    let mut config = ServeConfig::new(store);
    config.team_limits.concurrent = 1;
    let local = LocalBackend::open(&config, Arc::clone(&node) as _).await.unwrap();
    let backend = Resilient::new(Arc::new(local), patience(LONG));
    backend.create(&CreateSpec::new(team.clone(), "base")).await.unwrap();
    let refused = backend.create(&CreateSpec::new(team, "base")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (ErrorKind::Quota, None), "{refused}");
    assert_eq!((node.count(), backend.metrics().tries(Verb::Create, "quota_exceeded")), (1, 1));
}

#[tokio::test]
async fn the_remote_backend_passes_the_suite() {
    let server = Server::start().await;
    let backend = remote(&format!("http://{}", server.address), KEY, LONG);
    suite(&backend, &server.node, &some_team().await).await;
    let sized = CreateSpec { limits: Some(Limits::default()), ..spec().await };
    assert_eq!(backend.create(&sized).await.unwrap_err().kind(), ErrorKind::Invalid, "not silently ignored");
}

#[tokio::test]
async fn errors_of_a_remote_server_keep_their_kind() {
    let server = Server::start_with(|config| config.control.team_limits.concurrent = 1).await;
    let url = format!("http://{}", server.address);
    let stranger = remote(&url, "e2b_ffffffffffffffffffffffffffffffffffffffff", LONG);
    assert_eq!(stranger.create(&spec().await).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    let backend = remote(&url, KEY, LONG);
    backend.create(&spec().await).await.unwrap();
    let quota = backend.create(&spec().await).await.unwrap_err();
    assert_eq!(quota.kind(), ErrorKind::Quota, "{quota}");
    assert_eq!(server.node.count(), 1);
}

#[tokio::test]
async fn a_reply_that_is_lost_after_create_leaves_exactly_one_sandbox() {
    for knows_keys in [true, false] {
        let (server, proxy, backend) = behind_proxy(LONG).await;
        proxy.state.strip_keys.store(!knows_keys, Ordering::Relaxed);
        proxy.then([Fault::ReplyLost]);
        let made = backend.create(&spec().await).await.unwrap();
        assert_eq!((server.node.count(), server.node.creates.load(Ordering::Relaxed)), (1, 1), "keys {knows_keys}");
        assert!(server.node.state_of(made.id.as_str()).is_some());
    }
}

/// The first attempt takes longer than its caller waits.
#[tokio::test]
async fn a_create_that_takes_longer_than_we_wait_is_found_by_the_next_try() {
    let (server, _proxy, backend) = behind_proxy(Duration::from_millis(1500)).await;
    server.node.faults.create_takes.store(2500, Ordering::Relaxed);
    let made = backend.create(&spec().await).await;
    support::server::until("it is made", || async { server.node.count() == 1 }).await;
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 1);
    match made {
        Ok(made) => assert!(server.node.state_of(made.id.as_str()).is_some()),
        // On a slow machine, three attempts may be too few.
        Err(error) => assert!(error.is_transient(), "{error}"),
    }
}

#[tokio::test]
async fn a_bad_network_costs_tries_and_never_a_second_sandbox() {
    let gateway = Fault::Status(502, None);
    let busy = Fault::Status(429, Some("1"));
    let faults = [
        vec![Fault::Reset],
        vec![gateway, gateway],
        vec![Fault::Reset, gateway],
        vec![Fault::Delay(Duration::from_millis(300))],
        vec![busy],
        vec![Fault::Status(503, Some("0")), Fault::ReplyLost],
    ];
    for faults in faults {
        let (server, proxy, backend) = behind_proxy(LONG).await;
        proxy.then(faults.clone());
        let made = backend.create(&spec().await).await.unwrap_or_else(|error| panic!("{faults:?}: {error}"));
        assert_eq!(server.node.count(), 1, "{faults:?}");
        proxy.then(faults.clone());
        assert_eq!(backend.status(&made.id).await.unwrap().id, made.id, "{faults:?}");
        proxy.then(faults.clone());
        backend.destroy(&made.id).await.unwrap();
        assert_eq!(server.node.count(), 0, "{faults:?}");
    }
}

#[tokio::test]
async fn a_quota_without_a_time_and_a_time_that_is_too_far_away_are_handed_on_at_once() {
    let (server, proxy, backend) = behind_proxy(LONG).await;
    for retry_after in [None, Some("3600")] {
        proxy.then([Fault::Status(429, retry_after)]);
        let refused = backend.create(&spec().await).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Quota, "{refused}");
    }
    assert_eq!((proxy.seen("POST /v2/sandboxes"), server.node.count()), (2, 0));
}

#[tokio::test]
async fn a_server_that_swallows_everything_opens_the_breaker_until_it_answers_again() {
    let (server, proxy, backend) = behind_proxy(Duration::from_millis(400)).await;
    let id: SandboxId = server.create(serde_json::json!({})).await.parse().unwrap();
    proxy.always(Some(Fault::BlackHole));
    let first = backend.status(&id).await.unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Timeout, "{first}");
    let second = backend.status(&id).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::BreakerOpen, "{second}");
    let (asked, state) = (proxy.seen("GET"), backend.breaker_state());
    assert_eq!((asked, state), (4, BreakerState::Open));
    assert!(second.to_string().contains("remote backend is down"), "{second}");
    proxy.always(None);
    support::server::until("it is asked again", || async { backend.status(&id).await.is_ok() }).await;
    assert_eq!(backend.breaker_state(), BreakerState::Closed);
    assert!(backend.metrics().tries(Verb::Status, "breaker_open") >= 1);
}

/// A server that never existed.
#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_then_left_alone() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let backend = remote(&format!("http://{nobody}"), KEY, LONG);
    assert_eq!(backend.create(&spec().await).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let id = "i1".parse().unwrap();
    assert_eq!(backend.destroy(&id).await.unwrap_err().kind(), ErrorKind::BreakerOpen);
}

#[tokio::test]
async fn the_breaker_is_in_the_servers_metrics() {
    let server = Server::start().await;
    let metrics = server.metrics().await;
    assert!(metrics.contains("isopod_backend_breaker_state{backend=\"local\",state=\"closed\"} 1"), "{metrics}");
    let far = Server::start_with(|config| {
        let config_of_client = ClientConfig {
            api_url: "http://127.0.0.1:1".to_owned(),
            api_key: KEY.to_owned(),
            ..ClientConfig::default()
        };
        config.service.remote = Some(RemoteBackend::new(Client::new(config_of_client).unwrap()));
    })
    .await;
    let metrics = far.metrics().await;
    assert!(metrics.contains("isopod_backend_breaker_state{backend=\"remote\",state=\"closed\"} 1"), "{metrics}");
    assert!(!metrics.contains(KEY));
}
