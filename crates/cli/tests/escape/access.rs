//! Cases 16 and 17: keys and tokens of others, forged signatures, and what was valid once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::KEY;
use crate::served::{GUEST_PORT, Owned, Served};
use crate::table::Table;

/// Every verb that names a sandbox.
fn verbs(id: &str) -> Vec<(&'static str, String, Option<Value>)> {
    vec![
        ("GET", format!("/sandboxes/{id}"), None),
        ("DELETE", format!("/sandboxes/{id}"), None),
        ("POST", format!("/v2/sandboxes/{id}/connect"), Some(json!({}))),
        ("POST", format!("/sandboxes/{id}/connect"), Some(json!({ "timeout": 5 }))),
        ("POST", format!("/sandboxes/{id}/resume"), Some(json!({}))),
        ("POST", format!("/sandboxes/{id}/timeout"), Some(json!({ "timeout": 0 }))),
        ("POST", format!("/sandboxes/{id}/refreshes"), Some(json!({ "duration": 5 }))),
        ("POST", format!("/sandboxes/{id}/pause"), Some(json!({}))),
        ("PUT", format!("/sandboxes/{id}/network"), Some(json!({}))),
        ("GET", format!("/sandboxes/{id}/metrics"), None),
        ("GET", format!("/sandboxes/{id}/logs"), None),
        ("GET", format!("/v2/sandboxes/{id}/logs"), None),
        ("GET", format!("/events/sandboxes/{id}"), None),
    ]
}

#[tokio::test]
async fn case_16_another_teams_key_sees_nothing_at_all() {
    let served = Served::start();
    let table = Table::new("16 Keys of another team");
    let victim = served.create(json!({ "metadata": { "secret": "plan" } })).await;
    let other = served.other_team().await;
    for (method, path, body) in verbs(&victim.id) {
        let theirs = served.api(&other, method, &path, body.as_ref()).await;
        let nobodys = served.api(&other, method, &path.replace(&victim.id, "inobody"), body.as_ref()).await;
        assert_eq!((theirs.status, nobodys.status), (404, 404), "{method} {path}");
        assert_eq!(theirs.body.replace(&victim.id, "inobody"), nobodys.body, "{method} {path}");
        table.held_for_all(format!("{method} {}", path.replace(&victim.id, "{id}")), "as if there were none");
    }
    let list = served.api(&other, "GET", "/v2/sandboxes?metadata=secret%3Dplan", None).await;
    assert_eq!((list.status, list.json()), (200, json!([])));
    let metrics = served.api(&other, "GET", &format!("/sandboxes/metrics?sandbox_ids={}", victim.id), None).await;
    assert!(!metrics.body.contains(&victim.id), "{metrics:?}");
    table.held_for_all("lists and metrics of many", "only one's own");
    for key in ["", "e2b_", &format!("{KEY}0"), &KEY.to_uppercase(), &KEY[..KEY.len() - 1]] {
        let refused = served.api(key, "GET", &format!("/sandboxes/{}", victim.id), None).await;
        assert_eq!(refused.status, 401, "{key}");
    }
    table.held_for_all("keys that are nearly right", "401");
    assert_eq!(served.api(KEY, "GET", &format!("/sandboxes/{}", victim.id), None).await.json()["state"], "running");
    assert_eq!(served.kill(&victim.id).await, 204);
    served.finish();
}

/// Paths of the guest that only the owner of a sandbox may use.
const GUARDED: [&str; 4] = ["/envs", "/metrics", "/files?path=/etc/hostname", "/process.Process/List"];

#[tokio::test]
async fn case_16_another_sandboxs_token_opens_nothing() {
    let served = Served::start();
    let table = Table::new("16 Tokens of another sandbox");
    let (victim, thief) = (served.create(json!({})).await, served.create(json!({})).await);
    for token in [thief.token.as_str(), "", "null", KEY, &victim.token[1..]] {
        for path in GUARDED {
            let refused = served.inside(&victim.id, GUEST_PORT, path, &[("x-access-token", token)]).await;
            assert_eq!(refused.status, 401, "{path} {refused:?}");
        }
    }
    table.held_for_all("the guest, with another sandbox's token, a key, a cut token or none", "401");
    let opened = served.inside(&victim.id, GUEST_PORT, "/envs", &[("x-access-token", &victim.token)]).await;
    assert_eq!(opened.status, 200, "the right one opens");
    let private = json!({ "network": { "allowPublicTraffic": false } });
    let (mine, theirs) = (served.create(private.clone()).await, served.create(private).await);
    let traffic = served.api(KEY, "POST", &format!("/v2/sandboxes/{}/connect", theirs.id), Some(&json!({}))).await;
    let foreign = traffic.json()["trafficAccessToken"].as_str().expect("a traffic token").to_owned();
    for headers in [&[][..], &[("e2b-traffic-access-token", foreign.as_str())], &[("e2b-traffic-access-token", "x")]] {
        assert_eq!(served.inside(&mine.id, "8000", "/", headers).await.status, 403);
    }
    table.held_for_all("a private port, with another sandbox's traffic token or none", "403");
    for path in ["/init", "/logs", "//init", "/%69nit", "/x/../logs"] {
        let headers = [("x-isopod-control", "1"), ("x-access-token", victim.token.as_str())];
        assert_eq!(served.inside(&victim.id, GUEST_PORT, path, &headers).await.status, 404, "{path}");
        table.held_for_all(format!("the guest's own {path}"), "404");
    }
    for owned in [victim, thief, mine, theirs] {
        assert_eq!(served.kill(&owned.id).await, 204);
    }
    served.finish();
}

/// A signed URL as the SDKs make it, by the system's own tools.
fn sign(owned: &Owned, path: &str, operation: &str, expires: Option<i64>) -> String {
    let expiry = expires.map(|at| format!(":{at}")).unwrap_or_default();
    let text = format!("{path}:{operation}:user:{}{expiry}", owned.token);
    let script = "import sys,hashlib,base64,urllib.parse as u; \
                  d=base64.b64encode(hashlib.sha256(sys.argv[1].encode()).digest()).decode().rstrip('='); \
                  print(u.quote('v1_'+d,safe=''),end='')";
    let output = std::process::Command::new("python3").args(["-c", script, &text]).output().expect("python3 runs");
    let signature = String::from_utf8(output.stdout).expect("ASCII");
    let expiration = expires.map(|at| format!("&signature_expiration={at}")).unwrap_or_default();
    format!("/files?path={path}&username=user&signature={signature}{expiration}")
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_secs()).expect("a date")
}

#[tokio::test]
async fn case_16_signed_urls_are_good_for_what_they_say_and_no_more() {
    let served = Served::start();
    let table = Table::new("16 Signed URLs");
    let (victim, thief) = (served.create(json!({})).await, served.create(json!({})).await);
    let ask = async |method: &str, url: &str| {
        let body: &[u8] = if method == "POST" { b"x" } else { b"" };
        let headers = [("content-type", "application/octet-stream")];
        crate::common::raw::ask(served.server.port(), method, url, &headers, body).await.status
    };
    let expires = now() + 60;
    let good = sign(&victim, "/etc/hostname", "read", Some(expires));
    assert_eq!(ask("GET", &good).await, 200);
    let refused = [
        ("the path changed", good.replace("/etc/hostname", "/etc/passwd")),
        ("the user changed", good.replace("username=user", "username=root")),
        ("the expiry moved", good.replace(&expires.to_string(), &(expires + 6000).to_string())),
        ("the expiry left out", good.split("&signature_expiration").next().expect("a beginning").to_owned()),
        ("a character of the signature changed", good.replace("signature=v1_", "signature=v1_A")),
        ("expired", sign(&victim, "/etc/hostname", "read", Some(now() - 5))),
        ("signed for writing", sign(&victim, "/etc/hostname", "write", None)),
        (
            "signed with another text as token",
            sign(&Owned { token: KEY.to_owned(), id: String::new() }, "/x", "read", None),
        ),
    ];
    for (what, url) in refused {
        assert_eq!(ask("GET", &url).await, 401, "{what}: {url}");
        table.held_for_all(what, "401");
    }
    assert_eq!(ask("POST", &sign(&victim, "/tmp/x", "read", None)).await, 401);
    table.held_for_all("a read signature used to write", "401");
    // A signature of the thief names the thief's sandbox, whatever headers say.
    let own = sign(&thief, "/etc/hostname", "read", None);
    let crossed = served.inside(&victim.id, GUEST_PORT, &own, &[]).await;
    assert_eq!(crossed.status, 401, "{crossed:?}");
    table.held_for_all("another sandbox's signature, routed here by header", "401");
    for owned in [&victim, &thief] {
        assert_eq!(served.kill(&owned.id).await, 204);
    }
    assert_eq!(ask("GET", &good).await, 401, "a dead sandbox's signature");
    served.finish();
}

/// Everything that opened the sandbox is tried again.
async fn assert_dead(served: &Served, owned: &Owned, signed: &str, table: &Table, after: &str) {
    let token = [("x-access-token", owned.token.as_str())];
    for path in GUARDED.iter().chain(&["/health"]) {
        let answer = served.inside(&owned.id, GUEST_PORT, path, &token).await;
        assert!(answer.status == 502 && answer.body.contains("was not found"), "{after} {path}: {answer:?}");
    }
    assert_eq!(served.inside(&owned.id, "8000", "/", &[]).await.status, 502, "{after}");
    let file = crate::common::raw::ask(served.server.port(), "GET", signed, &[], b"").await;
    assert!([401, 502].contains(&file.status), "{after}: {file:?}");
    table.held_for_all(format!("token, port and signed URL after {after}"), "502, was not found");
}

#[tokio::test]
async fn case_17_tokens_and_streams_are_dead_after_pause_kill_and_timeout() {
    let served = Served::start();
    let table = Table::new("17 What was valid once");
    let client = served.server.client();
    for after in ["pause", "kill", "timeout"] {
        let fields = if after == "timeout" { json!({ "timeout": 6 }) } else { json!({}) };
        let owned = served.create(fields).await;
        let signed = sign(&owned, "/etc/hostname", "read", None);
        let id = owned.id.parse().expect("an id");
        let sandbox = client.connect(&id, Some(Duration::from_secs(1))).await.expect("it runs");
        let guest = sandbox.guest().clone().with_user("user");
        // A stream, and a connection that is kept for the next request.
        let mut stream = guest.start("echo up; sleep 1000").await.expect("it starts");
        assert_eq!(guest.run("echo kept").await.expect("it runs").stdout, b"kept\n");
        match after {
            "pause" => assert!(client.pause(&id, true).await.expect("it pauses")),
            "kill" => assert_eq!(served.kill(&owned.id).await, 204),
            _ => {}
        }
        let ended = async { while !matches!(stream.next().await, Err(_) | Ok(None)) {} };
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the stream ends");
        table.held_for_all(format!("an open stream after {after}"), "ended");
        guest.run("echo again").await.expect_err("a kept connection leads nowhere");
        assert_dead(&served, &owned, &signed, &table, after).await;
        if after == "pause" {
            assert_eq!(served.kill(&owned.id).await, 204);
        }
        assert_dead(&served, &owned, &signed, &table, after).await;
        // The answer does not wait until everything is removed.
        let homes = served.state.path().join("homes");
        let is_gone = async {
            while walk_sockets(&homes).iter().any(|socket| socket.contains(&owned.id)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_gone).await.expect("nothing of it is left");
    }
    let revoked = served.api(KEY, "POST", "/api-keys", Some(&json!({ "name": "short" }))).await.json();
    let (key, key_id) = (revoked["key"].as_str().expect("a key"), revoked["id"].as_str().expect("an id"));
    assert_eq!(served.api(key, "GET", "/v2/sandboxes", None).await.status, 200);
    assert_eq!(served.api(KEY, "DELETE", &format!("/api-keys/{key_id}"), None).await.status, 204);
    assert_eq!(served.api(key, "GET", "/v2/sandboxes", None).await.status, 401);
    table.held_for_all("a revoked key", "401");
    served.finish();
}

/// Records with a guest's socket beside them, as text.
fn walk_sockets(homes: &std::path::Path) -> Vec<String> {
    let directories = |path: &std::path::Path| {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let boxes = directories(homes).into_iter().flat_map(|home| directories(&home.join("boxes")));
    let with_socket = boxes.filter(|path| path.join("guest.sock").exists());
    with_socket.map(|path| std::fs::read_to_string(path.join("record.json")).unwrap_or_default()).collect()
}
