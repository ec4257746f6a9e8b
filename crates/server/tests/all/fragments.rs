//! Fragments and their short URLs, with a backend or a node in plain Rust.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use isopod_server::ServerConfig;
use isopod_service::CommandPolicy;
use isopod_store::Scope;
use isopod_store::service::{QuotaLimits, ShortUrlLimits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use support::backend::LISTENING;
use support::hostile::{ENDLESS, MUCH, NONSENSE};
use support::server::until;
use support::{Answer, Client, FakeBackend, Server, backend};

const RUN: &str = "/api/v1/fragments";
const PUBLISHED: &str = "/api/v1/fragments/published";

async fn start() -> (Server, Arc<FakeBackend>) {
    start_with(|_| {}).await
}

async fn start_with(change: impl Fn(&mut ServerConfig) + Send + Sync + 'static) -> (Server, Arc<FakeBackend>) {
    let fake = backend::fake();
    let given = Arc::clone(&fake);
    let server = Server::start_with(move |config| {
        config.control.domain = "box.example".to_owned();
        config.service.backend = Some(Arc::clone(&given) as _);
        config.service.app_start_timeout = Duration::from_millis(50);
        change(config);
    })
    .await;
    (server, fake)
}

/// What a model answers for E2B's fragments schema, with other values in the place of some.
fn fragment(fields: Value) -> Value {
    let mut all = json!({
        "commentary": "I will…", "template": "code-interpreter-v1", "title": "A title", "description": "What it does",
        "additional_dependencies": [], "has_additional_dependencies": false, "install_dependencies_command": "",
        "port": null, "file_path": "script.py", "code": "print(1)",
    });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    all
}

async fn run(client: &Client, fields: Value) -> Value {
    let done = client.post(RUN, fragment(fields)).await;
    assert_eq!(done.status, 200, "{done:?}");
    done.json
}

async fn app(client: &Client) -> Value {
    run(client, json!({ "template": "web", "port": LISTENING, "file_path": "index.html", "code": "<h1>" })).await
}

async fn publish(client: &Client, fields: Value) -> Answer {
    client.post(PUBLISHED, fields).await
}

async fn visit(server: &Server, id: &str) -> Answer {
    server.client.raw(Method::GET, &format!("/s/{id}"), &[("host", "box.example")], "".into()).await
}

async fn ends_at(server: &Server, app: &Value) -> String {
    let shown = server.client.get(&format!("/sandboxes/{}", app["sbxId"].as_str().unwrap())).await.json;
    shown["endAt"].as_str().unwrap().to_owned()
}

fn steps_of(fake: &FakeBackend) -> Vec<String> {
    std::mem::take(&mut *fake.steps.lock().unwrap())
}

/// The shapes that E2B's app expects, also with its own fields around the fragment. Those name no team.
#[tokio::test]
async fn a_fragment_runs_and_the_result_has_the_shape_that_the_app_expects() {
    let (server, fake) = start().await;
    let others = server.other_team().await;
    let wrapped =
        json!({ "fragment": fragment(json!({ "later": 1 })), "userID": "u", "teamID": "others", "accessToken": "x" });
    let done = server.client.post(RUN, wrapped).await;
    assert_eq!(done.status, 200, "{done:?}");
    let id = done.json["sbxId"].as_str().unwrap();
    let expected = json!({
        "sbxId": id, "template": "code-interpreter-v1", "stdout": ["print(1)\n", "last"], "stderr": [],
        "runtimeError": null, "cellResults": [{ "text": "42", "isMainResult": true }], "truncated": false,
    });
    assert_eq!(done.json, expected);
    let spec = fake.specs.lock().unwrap()[0].clone();
    assert_eq!(
        (spec.metadata["template"].as_str(), spec.metadata["title"].as_str()),
        ("code-interpreter-v1", "A title")
    );
    assert_eq!((spec.metadata.contains_key("teamID"), spec.timeout.as_secs()), (false, 600));
    assert_eq!(server.client.get(&format!("/api/v1/sandboxes/{id}")).await.json["status"], "running");
    assert_eq!(others.get(&format!("/api/v1/sandboxes/{id}")).await.status, 404);

    let failed = run(&server.client, json!({ "code": "raise" })).await;
    assert_eq!(failed["runtimeError"], json!({ "name": "E", "value": "v", "traceback": "t" }));
    assert_eq!(failed["cellResults"], json!([]));

    let app = app(&server.client).await;
    let id = app["sbxId"].as_str().unwrap();
    let url = format!("http://{LISTENING}-{id}.box.example");
    assert_eq!(app, json!({ "sbxId": id, "template": "web", "url": url }));
}

/// Nothing runs before the files that it needs are there, and apps reload when their dependencies are there.
#[tokio::test]
async fn dependencies_are_installed_before_the_code_is_written_and_all_files_before_it_runs() {
    let (server, fake) = start().await;
    let files = json!([
        { "file_path": "main.ts", "file_content": "1" },
        { "file_path": "web/package.json", "file_content": "{}" },
        { "file_path": "requirements.txt", "file_content": "x" },
    ]);
    let fields = json!({
        "code": files, "file_path": "main.ts", "has_additional_dependencies": true, "install_dependencies": true,
        "install_dependencies_command": "echo install", "timeout_seconds": 30,
    });
    run(&server.client, fields).await;
    let expected = [
        "write web/package.json",
        "write requirements.txt",
        "run echo install",
        "run npm install --prefix 'web'",
        "run pip install -r 'requirements.txt'",
        "write main.ts",
        "write web/package.json",
        "write requirements.txt",
        "code typescript",
    ];
    assert_eq!(steps_of(&fake), expected);
    assert_eq!(fake.specs.lock().unwrap()[0].timeout.as_secs(), 30);
    let listed = json!({ "additional_dependencies": ["pandas"], "has_additional_dependencies": true });
    run(&server.client, listed).await;
    assert_eq!(steps_of(&fake)[0], "run pip install 'pandas'");
    let started = json!({ "template": "base", "port": LISTENING, "file_path": "a", "start_command": "serve" });
    run(&server.client, started).await;
    assert_eq!(steps_of(&fake), ["write a", "run serve"]);
    let history = server.client.get("/api/v1/commands").await.json;
    assert!(history["commands"].as_array().unwrap().iter().any(|one| one["command"] == "pip install 'pandas'"));
}

/// Whatever step fails, the error names it and shows its output, and no sandbox is left.
#[tokio::test]
async fn a_step_that_fails_is_named_and_leaves_no_sandbox() {
    let (server, fake) = start().await;
    let install = |line: &str| json!({ "has_additional_dependencies": true, "install_dependencies_command": line });
    let app = |fields: Value| {
        let mut all = json!({ "template": "web", "file_path": "a", "port": 1 });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    let failures = [
        (json!({ "template": "nowhere" }), 404, "not_found", "create", "template 'nowhere' not found"),
        (install("fail 7"), 422, "step_failed", "install", "\"fail 7\" ended with exit status 7"),
        (install("break"), 503, "backend_unavailable", "install", "injected"),
        (
            json!({ "file_path": "/denied/a" }),
            422,
            "step_failed",
            "write",
            "could not write \"/denied/a\": permission denied",
        ),
        (json!({ "code": "forever" }), 422, "step_failed", "run", "the code took longer than 300 s"),
        (app(json!({})), 422, "step_failed", "start", "nothing listens on port 1"),
        (app(json!({ "start_command": "serve" })), 422, "step_failed", "start", "nothing listens on port 1"),
        (
            app(json!({ "start_command": "fail 3" })),
            422,
            "step_failed",
            "start",
            "ended with exit status 3 before it listened",
        ),
    ];
    for (fields, status, code, step, message) in failures {
        let failed = server.client.post(RUN, fragment(fields.clone())).await;
        assert_eq!((failed.status, &failed.json["error_code"]), (status, &json!(code)), "{fields}: {failed:?}");
        assert_eq!(failed.json["details"]["step"], step, "{failed:?}");
        assert!(failed.json["message"].as_str().unwrap().contains(message), "{failed:?}");
        assert_eq!(fake.count(), 0, "{fields}");
    }
    let failed = server.client.post(RUN, fragment(install("fail 7"))).await.json;
    assert_eq!((&failed["details"]["exit_code"], &failed["details"]["timed_out"]), (&json!(7), &json!(false)));
    let ended = server.client.post(RUN, fragment(app(json!({ "start_command": "both" })))).await.json;
    assert_eq!((&ended["details"]["stdout"], &ended["details"]["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(fake.count(), 0);
    let rows = server.client.get("/api/v1/sandboxes?include_ended=true&limit=100").await.json;
    let reasons: Vec<_> = rows["sandboxes"].as_array().unwrap().iter().map(|row| row["reason"].clone()).collect();
    assert!(reasons.contains(&json!("fragment_failed")), "{reasons:?}");
}

#[tokio::test]
async fn bad_fragments_are_refused_before_anything_is_created() {
    let (server, fake) = start_with(|config| {
        config.service.policy = CommandPolicy { allow: Vec::new(), deny: vec!["curl".to_owned()] };
    })
    .await;
    let many: Vec<_> =
        (0..101).map(|number| json!({ "file_path": format!("f{number}"), "file_content": "" })).collect();
    let file = |path: &str| json!({ "code": [{ "file_path": path, "file_content": "" }], "file_path": path });
    let bad = [
        json!({ "template": "" }),
        json!({ "template": null }),
        json!({ "code": null }),
        json!({ "code": 7 }),
        json!({ "code": [] }),
        json!({ "code": [{ "file_path": "a" }] }),
        json!({ "code": many, "file_path": "f0" }),
        json!({ "code": [{ "file_path": "a", "file_content": "" }], "file_path": "b" }),
        json!({ "code": [{ "file_path": "a", "file_content": "" }, { "file_path": "a", "file_content": "" }], "file_path": "a" }),
        json!({ "template": "base", "file_path": null }),
        file("../a"),
        file("a/"),
        file(""),
        file(&"x".repeat(1025)),
        json!({ "template": "web", "port": 0 }),
        json!({ "template": "web", "port": 65536 }),
        json!({ "template": "web", "start_command": "serve" }),
        json!({ "timeout_seconds": 29 }),
        json!({ "timeout_seconds": 3601 }),
        json!({ "has_additional_dependencies": true, "additional_dependencies": ["--evil"] }),
        json!({ "has_additional_dependencies": true, "install_dependencies_command": "x".repeat(20_000) }),
    ];
    for fields in bad {
        let refused = server.client.post(RUN, fragment(fields.clone())).await;
        let code = refused.json["error_code"].as_str();
        assert_eq!((refused.status, code), (400, Some("invalid_request")), "{fields}: {refused:?}");
    }
    let denied = json!({ "has_additional_dependencies": true, "install_dependencies_command": "ls && curl x" });
    let refused = server.client.post(RUN, fragment(denied)).await;
    assert_eq!((refused.status, &refused.json["error_code"]), (403, &json!("command_refused")));
    assert_eq!(fake.creates.load(Ordering::Relaxed), 0);
    let too_large = server.client.post(RUN, fragment(json!({ "code": "x".repeat(5 << 20) }))).await;
    assert_eq!(too_large.status, 413);
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_no_sandbox() {
    let (server, fake) = start().await;
    fake.write_takes_ms.store(300, Ordering::Relaxed);
    let client = server.client.clone();
    let asking = tokio::spawn(async move { client.post(RUN, fragment(json!({}))).await });
    until("the sandbox is created", || async { fake.count() == 1 }).await;
    asking.abort();
    until("the sandbox is gone", || async { fake.count() == 0 }).await;
    let rows = server.client.get("/api/v1/sandboxes?include_ended=true").await.json;
    assert_eq!(rows["sandboxes"][0]["reason"], "client_gone");
}

/// Fragments count against the quotas, belong to their key's agent, and are in the audit log.
#[tokio::test]
async fn a_fragment_belongs_to_its_caller() {
    let (server, fake) = start_with(|config| {
        config.service.quotas.agent = QuotaLimits { concurrent: Some(1), ..QuotaLimits::default() };
    })
    .await;
    let ada = server.key_of(Scope::Agent("ada".to_owned())).await;
    let done = run(&ada, json!({})).await;
    assert_eq!(fake.specs.lock().unwrap()[0].metadata["agent_id"], "ada");
    let second = ada.post(RUN, fragment(json!({}))).await;
    assert_eq!((second.status, &second.json["error_code"]), (429, &json!("quota_exceeded")), "{second:?}");
    assert_eq!((&second.json["details"]["step"], &second.json["details"]["limit"]), (&json!("create"), &json!(1)));
    let reader = server.key_of(Scope::ReadOnly).await;
    assert_eq!(reader.post(RUN, fragment(json!({}))).await.status, 403);
    assert_eq!(reader.post("/sandbox/run", json!({ "script": "1" })).await.status, 403);
    let lines = server.client.get("/api/v1/audit?action=fragment.run").await.json;
    let line = lines["lines"].as_array().unwrap().iter().find(|line| line["status"] == 200).unwrap();
    assert_eq!(line["agent"], "ada");
    assert!(line["sandbox"].is_string() && done["sbxId"].is_string());
}

#[tokio::test]
async fn a_short_url_leads_to_the_preview_until_it_expires_or_is_removed() {
    let (mut server, fake) = start().await;
    let app = app(&server.client).await;
    let (id, url) = (app["sbxId"].as_str().unwrap(), app["url"].as_str().unwrap());
    let wanted = json!({ "sbxId": id, "url": format!("{url}/a?b=c"), "duration": "3h" });
    let made = publish(&server.client, wanted).await;
    assert_eq!(made.status, 201, "{made:?}");
    let short = made.json["id"].as_str().unwrap().to_owned();
    assert!(short.len() == 7 && short.bytes().all(|byte| byte.is_ascii_hexdigit()), "{short}");
    assert_eq!(made.json["url"], format!("http://box.example/s/{short}"));
    assert_eq!(fake.timeouts.lock().unwrap().as_slice(), [Duration::from_secs(3 * 3600)]);

    // Anybody may open it, also after a restart.
    server.stop().await;
    let server = server.start_again().await;
    let opened = visit(&server, &short).await;
    assert_eq!((opened.status, opened.headers["location"].to_str().unwrap()), (302, format!("{url}/a?b=c").as_str()));
    assert_eq!(opened.headers["cache-control"], "no-store");
    let listed = server.client.get(PUBLISHED).await.json;
    assert_eq!(
        (&listed["published"][0]["id"], &listed["published"][0]["target"]),
        (&json!(short), &json!(format!("{url}/a?b=c")))
    );

    // A second one that is shorter does not end the sandbox earlier.
    let second = publish(&server.client, json!({ "sbxId": id, "port": 3000, "duration": "30m" })).await.json;
    assert_eq!(fake.timeouts.lock().unwrap().len(), 1);
    let second = second["id"].as_str().unwrap();
    let path = format!("{PUBLISHED}/{second}");
    assert_eq!(server.client.delete(&path).await.status, 204);
    assert_eq!(server.client.delete(&path).await.status, 204, "also if it is gone");
    assert_eq!(visit(&server, second).await.status, 410);
    assert_eq!(visit(&server, &short).await.status, 302);

    server.sql(format!("UPDATE short_urls SET expires_at = 1 WHERE id = '{short}'")).await;
    let expired = visit(&server, &short).await;
    assert_eq!((expired.status, &expired.json["error_code"]), (410, &json!("gone")));
    assert_eq!(server.client.get(PUBLISHED).await.json["published"], json!([]));
    let page = server.client.raw(Method::GET, &format!("/s/{short}"), &[("accept", "text/html,*/*")], "".into()).await;
    assert!(page.status == 410 && page.text.contains("this link has expired"), "{page:?}");
    assert_eq!(server.client.delete(&format!("{PUBLISHED}/0000000")).await.status, 404);
}

#[tokio::test]
async fn a_short_url_of_a_sandbox_that_has_ended_leads_nowhere() {
    let (server, fake) = start().await;
    let (first, second) = (app(&server.client).await, app(&server.client).await);
    let mut shorts = Vec::new();
    for app in [&first, &second] {
        let made = publish(&server.client, json!({ "sbxId": app["sbxId"], "port": LISTENING })).await;
        shorts.push(made.json["id"].as_str().unwrap().to_owned());
    }
    let ended = server.client.delete(&format!("/api/v1/sandboxes/{}", first["sbxId"].as_str().unwrap())).await;
    assert_eq!(ended.status, 204);
    fake.lose(second["sbxId"].as_str().unwrap());
    for short in shorts {
        assert_eq!(visit(&server, &short).await.status, 410);
    }
    let late = publish(&server.client, json!({ "sbxId": first["sbxId"], "port": LISTENING })).await;
    assert_eq!((late.status, &late.json["error_code"]), (409, &json!("sandbox_not_running")));
}

/// It is never an open redirect: the target is a port of this very sandbox, and the caller must own it.
#[tokio::test]
async fn only_previews_of_the_callers_sandboxes_are_published() {
    let (server, _fake) = start().await;
    let others = server.other_team().await;
    let (mine, theirs) = (app(&server.client).await, app(&others).await);
    let (id, other) = (mine["sbxId"].as_str().unwrap(), theirs["sbxId"].as_str().unwrap());
    let with_url = |url: String| json!({ "sbxId": id, "url": url });
    let bad = [
        with_url("https://evil.example/".to_owned()),
        with_url(format!("https://{LISTENING}-{id}.box.example.evil.example/")),
        with_url(format!("https://{LISTENING}-{id}.evil.example/")),
        with_url(format!("https://{LISTENING}-{other}.box.example/")),
        with_url(format!("https://x@{LISTENING}-{id}.box.example/")),
        with_url("javascript:alert(1)".to_owned()),
        with_url(format!("https://{LISTENING}-{id}.box.example/\r\nset-cookie: a")),
        json!({ "sbxId": id }),
        json!({ "sbxId": id, "port": 0 }),
        json!({ "sbxId": id, "port": 49983 }),
        with_url(format!("https://49999-{id}.box.example/")),
        json!({ "sbxId": id, "port": 80, "url": mine["url"] }),
        json!({ "sbxId": id, "port": 80, "duration": "25h" }),
        json!({ "sbxId": id, "port": 80, "duration": "soon" }),
        json!({ "port": 80 }),
    ];
    for wanted in bad {
        let refused = publish(&server.client, wanted.clone()).await;
        assert_eq!(
            (refused.status, &refused.json["error_code"]),
            (400, &json!("invalid_request")),
            "{wanted}: {refused:?}"
        );
    }
    assert_eq!(publish(&server.client, json!({ "sbxId": other, "port": LISTENING })).await.status, 404);
    assert_eq!(publish(&server.client, json!({ "sbxId": "inobody", "port": LISTENING })).await.status, 404);
    let made = publish(&server.client, json!({ "sbxId": id, "port": LISTENING })).await.json;
    let path = format!("{PUBLISHED}/{}", made["id"].as_str().unwrap());
    assert_eq!(others.delete(&path).await.status, 404);
    let agent = server.key_of(Scope::Agent("ada".to_owned())).await;
    assert_eq!(agent.delete(&path).await.status, 403);
    assert_eq!(
        (others.get(PUBLISHED).await.json, agent.get(PUBLISHED).await.json),
        (json!({ "published": [] }), json!({ "published": [] }))
    );
    let reader = server.key_of(Scope::ReadOnly).await;
    assert_eq!(
        (reader.delete(&path).await.status, publish(&reader, json!({ "sbxId": id, "port": 80 })).await.status),
        (403, 403)
    );
    assert_eq!(reader.get(PUBLISHED).await.json["published"].as_array().unwrap().len(), 1);
    assert_eq!(visit(&server, made["id"].as_str().unwrap()).await.status, 302);
}

#[tokio::test]
async fn short_urls_are_limited_and_so_are_guesses() {
    let (server, _fake) = start_with(|config| {
        config.service.short_urls = ShortUrlLimits { live: 2, per_day: 3, per_address_per_day: None };
        config.service.guesses_per_minute = 3;
    })
    .await;
    let app = app(&server.client).await;
    let wanted = json!({ "sbxId": app["sbxId"], "port": LISTENING });
    let mut made = Vec::new();
    for _ in 0..2 {
        made.push(publish(&server.client, wanted.clone()).await.json["id"].as_str().unwrap().to_owned());
    }
    let third = publish(&server.client, wanted.clone()).await;
    assert_eq!((third.status, &third.json["details"]["what"]), (429, &json!("short_urls")));
    assert_eq!(server.client.delete(&format!("{PUBLISHED}/{}", made[1])).await.status, 204);
    assert_eq!(publish(&server.client, wanted.clone()).await.status, 201);
    assert_eq!(server.client.delete(&format!("{PUBLISHED}/{}", made[0])).await.status, 204);
    let fourth = publish(&server.client, wanted.clone()).await;
    assert_eq!((fourth.status, &fourth.json["details"]["what"]), (429, &json!("short_urls_per_day")));
    let others = server.other_team().await;
    let theirs = run(&others, json!({ "template": "web", "port": LISTENING, "file_path": "a" })).await;
    let theirs = publish(&others, json!({ "sbxId": theirs["sbxId"], "port": LISTENING })).await;
    assert_eq!(theirs.status, 201, "another team has limits of its own");

    // Links that exist are no guesses, however often they are opened.
    let short = theirs.json["id"].as_str().unwrap();
    for _ in 0..5 {
        assert_eq!(visit(&server, short).await.status, 302);
    }
    for wrong in ["0000000", "not-hex", made[0].as_str()] {
        assert!([404, 410].contains(&visit(&server, wrong).await.status), "{wrong}");
    }
    let limited = visit(&server, short).await;
    assert_eq!((limited.status, &limited.json["error_code"]), (429, &json!("too_many_requests")), "also if it exists");
    assert!(limited.headers.contains_key("retry-after"));
}

/// Whose key it is does not matter, and neither does whether the links still work.
#[tokio::test]
async fn an_address_creates_only_so_many_short_urls_a_day() {
    let (mut server, _fake) = start().await;
    let others = server.other_team().await;
    let wanted = |app: &Value| json!({ "sbxId": app["sbxId"], "port": LISTENING });
    let (mine, theirs) = (wanted(&app(&server.client).await), wanted(&app(&others).await));
    for number in 0..10 {
        let (client, wanted) = if number % 2 == 0 { (&server.client, &mine) } else { (&others, &theirs) };
        let made = publish(client, wanted.clone()).await;
        assert_eq!(made.status, 201, "{made:?}");
        let path = format!("{PUBLISHED}/{}", made.json["id"].as_str().unwrap());
        assert_eq!(client.delete(&path).await.status, 204);
    }
    let is_refused = |answer: &Answer| {
        assert_eq!((answer.status, &answer.json["error_code"]), (429, &json!("quota_exceeded")), "{answer:?}");
        let limit = json!({ "owner": "address", "what": "short_urls_per_day", "limit": 10 });
        assert_eq!(answer.json["details"], limit);
        let wait: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((23 * 3600..=24 * 3600).contains(&wait), "until the first is a day old: {wait}");
    };
    is_refused(&publish(&server.client, mine.clone()).await);
    is_refused(&publish(&others, theirs).await);
    let from_elsewhere = publish_from([127, 0, 0, 2], &server, &mine).await;
    assert!(from_elsewhere.starts_with("HTTP/1.1 201"), "another address has a limit of its own: {from_elsewhere}");

    // A restart does not forget them. A day later they don't count.
    server.stop().await;
    let server = server.start_again().await;
    is_refused(&publish(&server.client, mine.clone()).await);
    let oldest = "(SELECT id FROM short_urls ORDER BY created_at, id LIMIT 1)";
    server.sql(format!("UPDATE short_urls SET created_at = created_at - 86400000 WHERE id = {oldest}")).await;
    assert_eq!(publish(&server.client, mine.clone()).await.status, 201);
    is_refused(&publish(&server.client, mine).await);
}

#[tokio::test]
async fn the_limit_of_an_address_can_be_turned_off() {
    let (server, _fake) = start_with(|config| config.service.short_urls.per_address_per_day = None).await;
    let app = app(&server.client).await;
    for _ in 0..11 {
        let made = publish(&server.client, json!({ "sbxId": app["sbxId"], "port": LISTENING })).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
}

/// The head of the answer to a client at another address.
async fn publish_from(address: [u8; 4], server: &Server, wanted: &Value) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let (key, body) = (&server.client.key, wanted.to_string());
    let request = format!(
        "POST {PUBLISHED} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Whatever answers in the interpreter's place.
#[tokio::test]
async fn what_a_sandbox_answers_to_a_fragment_is_bounded() {
    let server = Server::start().await;
    let much = run(&server.client, json!({ "code": MUCH })).await;
    let kept: usize = much["stdout"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().len()).sum();
    assert!(much["truncated"] == true && kept <= 64 << 20, "{kept}");
    let server = Server::start_with(|config| config.service.command_timeout = Duration::from_secs(1)).await;
    for (code, timed_out) in [(ENDLESS, true), (NONSENSE, false)] {
        let failed = server.client.post(RUN, fragment(json!({ "code": code }))).await;
        assert_eq!((failed.status, &failed.json["details"]["step"]), (422, &json!("run")), "{failed:?}");
        assert_eq!(failed.json["details"]["timed_out"], timed_out, "{failed:?}");
    }
    assert_eq!(server.node.count(), 0);
}

/// On the server's own node: the URL leads through the edge, and a script leaves nothing but its result.
#[tokio::test]
async fn fragments_and_scripts_run_on_the_servers_own_node() {
    let server = Server::start_with(|config| {
        config.control.domain = "box.example".to_owned();
        config.service.app_start_timeout = Duration::from_millis(50);
    })
    .await;
    let app = run(&server.client, json!({ "template": "base", "port": 8080, "file_path": "a" })).await;
    let host = app["url"].as_str().unwrap().strip_prefix("http://").unwrap();
    let page = server.client.raw(Method::GET, "/x", &[("host", host)], "".into()).await;
    assert_eq!((page.status, &page.json["target"]), (200, &json!("Port(8080)")), "{page:?}");
    assert!(!page.headers.contains_key("x-frame-options"));
    let ends_before = ends_at(&server, &app).await;
    let made = publish(&server.client, json!({ "sbxId": app["sbxId"], "url": app["url"], "duration": "1d" })).await;
    assert_eq!(
        visit(&server, made.json["id"].as_str().unwrap()).await.headers["location"],
        format!("{}/", app["url"].as_str().unwrap())
    );
    assert!(ends_at(&server, &app).await > ends_before, "the sandbox lives as long as its URL");
    assert_eq!(server.node.count(), 1);

    let closed = server.client.post(RUN, fragment(json!({ "template": "base", "port": 81 }))).await;
    assert_eq!((closed.status, &closed.json["details"]["step"]), (422, &json!("start")), "{closed:?}");
    let code = run(&server.client, json!({ "code": "raise" })).await;
    assert_eq!((&code["stdout"], &code["runtimeError"]["name"]), (&json!(["raise"]), &json!("E")));
    assert_eq!(server.node.count(), 2);

    let done = server.client.post("/sandbox/run", json!({ "script": "hello", "language": "JS" })).await;
    assert_eq!(
        (done.status, &done.json["output"], &done.json["status"]),
        (200, &json!("hello"), &json!("success")),
        "{done:?}"
    );
    assert_eq!(done.json["metadata"]["memory_usage_mb"], json!(5.0));
    assert!(done.json["metadata"]["execution_time_ms"].is_u64());
    let failed = server.client.post("/sandbox/run", json!({ "script": "raise" })).await.json;
    assert_eq!(
        (&failed["status"], &failed["error"], &failed["output"]),
        (&json!("error"), &json!("E: v"), &json!("raise\nt"))
    );
    let unknown = server.client.post("/sandbox/run", json!({ "script": "x", "language": "cobol" })).await;
    assert!(unknown.status == 400 && unknown.json["message"].as_str().unwrap().contains("typescript"), "{unknown:?}");
    assert_eq!(server.node.count(), 2, "scripts leave nothing");

    server.node.has_interpreter.store(false, Ordering::Relaxed);
    let none = server.client.post(RUN, fragment(json!({ "template": "base" }))).await;
    assert_eq!((none.status, &none.json["details"]["step"]), (422, &json!("run")), "{none:?}");
    assert!(none.json["message"].as_str().unwrap().contains("has no code interpreter"), "{none:?}");
    assert_eq!(server.node.count(), 2);
}
