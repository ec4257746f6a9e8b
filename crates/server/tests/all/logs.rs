//! Logs of sandboxes: output of commands comes from the guest, once, and stays after the sandbox.

use crate::support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::{Value, json};
use support::Server;
use support::server::until;

/// No sampler runs during a test, so output was fetched for another reason.
async fn without_sampler() -> Server {
    Server::start_with(|config| config.control.sample_every = Duration::from_secs(3600)).await
}

async fn entries(server: &Server, id: &str, query: &str) -> Vec<Value> {
    let answer = server.client.get(&format!("/v2/sandboxes/{id}/logs{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json["logs"].as_array().unwrap().clone()
}

/// The output of commands, without lifecycle entries.
async fn output(server: &Server, id: &str, query: &str) -> Vec<String> {
    let all = entries(server, id, query).await;
    let printed = all.iter().filter(|entry| entry["fields"]["stream"].is_string());
    printed.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_guests_log_is_closed_to_clients() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    for path in ["/logs", "/logs?after=0", "//logs", "/%6cogs"] {
        let port = isopod_wire::GUEST_PORT;
        let asked =
            [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", &port.to_string()), ("x-isopod-control", "1")];
        let refused = server.client.raw(http::Method::GET, path, &asked, bytes::Bytes::new()).await;
        assert_eq!(refused.status, 404, "{path}");
    }
}

#[tokio::test]
async fn logs_tell_what_commands_printed_line_by_line() {
    let server = without_sampler().await;
    let id = server.create(json!({})).await;
    server.node.printed.print("stdout", "one\ntwo\nthree");
    server.node.printed.print("stderr", "oops");
    assert_eq!(output(&server, &id, "").await, ["one", "two", "three", "oops"]);
    assert_eq!(output(&server, &id, "").await.len(), 4, "nothing is told twice");
    assert_eq!(output(&server, &id, "?level=error").await, ["oops"]);
    assert_eq!(output(&server, &id, "?search=tw").await, ["two"]);
    assert_eq!(output(&server, &id, "?direction=backward&limit=3").await, ["oops", "three", "two"]);
    server.node.printed.print("pty", "four");
    let v1 = server.client.get(&format!("/sandboxes/{id}/logs")).await.json;
    let lines = v1["logs"].as_array().unwrap();
    assert_eq!(lines.len(), v1["logEntries"].as_array().unwrap().len());
    let last: Value = serde_json::from_str(lines.last().unwrap()["line"].as_str().unwrap()).unwrap();
    assert_eq!((&last["message"], &last["fields"]["stream"]), (&json!("four"), &json!("pty")));
}

#[tokio::test]
async fn the_last_words_before_a_pause_or_a_kill_are_kept() {
    let server = without_sampler().await;
    let id = server.create(json!({})).await;
    server.node.printed.print("stdout", "before the pause");
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(output(&server, &id, "").await, ["before the pause"]);
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 201);
    server.node.printed.print("stdout", "before the end");
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(output(&server, &id, "").await, ["before the pause", "before the end"]);
}

#[tokio::test]
async fn a_new_server_goes_on_where_the_last_one_stopped() {
    let mut server = without_sampler().await;
    let id = server.create(json!({})).await;
    server.node.printed.print("stdout", "first");
    assert_eq!(output(&server, &id, "").await, ["first"]);
    server.crash().await;
    let server = server.start_again().await;
    server.node.printed.print("stdout", "second");
    assert_eq!(output(&server, &id, "").await, ["first", "second"]);
}

#[tokio::test]
async fn output_is_fetched_without_anyone_asking_and_a_quiet_sandbox_is_asked_less() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.printed.print("stdout", "hello");
    let asked = || server.node.printed.asked.load(Relaxed);
    until("the sampler has asked", || async { asked() > 0 }).await;
    // Polled every 50 ms: forty polls, nearly all of which are skipped.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(asked() < 20, "{}", asked());
    server.node.lose(&id);
    assert_eq!(output(&server, &id, "").await, ["hello"]);
}

#[tokio::test]
async fn a_guest_that_lies_or_hangs_stops_nothing() {
    let server = without_sampler().await;
    let id = server.create(json!({})).await;
    let far = i64::MAX;
    let wild = json!({ "next": 3, "more": true, "skipped": u64::MAX,
        "blocks": [{ "at": far, "pid": 1, "stream": "stdout", "text": "from the future" }] });
    for lie in ["", "[]", "{\"next\":-1}", &wild.to_string(), &"x".repeat(5 << 20)] {
        *server.node.printed.lie.lock().unwrap() = Some(lie.to_owned());
        assert_eq!(server.client.get(&format!("/sandboxes/{id}/logs")).await.status, 200);
    }
    // Small in transit, but as many rows in the store.
    let many = vec![json!({ "at": 1, "pid": 1, "stream": "stdout", "text": "swarm" }); 70_000];
    let swarm = json!({ "next": 9, "more": true, "skipped": 0, "blocks": many });
    *server.node.printed.lie.lock().unwrap() = Some(swarm.to_string());
    assert!(!output(&server, &id, "").await.iter().any(|line| line == "swarm"));
    *server.node.printed.lie.lock().unwrap() = None;
    server.node.printed.hangs.store(true, Relaxed);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 201);
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(server.node.count(), 0);
}

#[tokio::test]
async fn guests_that_hang_do_not_stop_the_figures_of_others() {
    let server = Server::start().await;
    server.node.printed.hangs.store(true, Relaxed);
    let ids = [server.create(json!({})).await, server.create(json!({})).await];
    for id in ids {
        until("there are samples", || async {
            let samples = server.client.get(&format!("/sandboxes/{id}/metrics")).await.json;
            samples.as_array().is_some_and(|samples| samples.len() > 3)
        })
        .await;
    }
}

#[tokio::test]
async fn a_sandbox_keeps_only_so_much_of_its_output() {
    let server = without_sampler().await;
    let id = server.create(json!({})).await;
    let line = "x".repeat(100_000);
    for number in 0..60 {
        server.node.printed.print("stdout", &format!("{number} {line}"));
        if number % 10 == 9 {
            output(&server, &id, "?limit=1").await;
        }
    }
    let (mut kept, mut cursor) = (Vec::new(), 0);
    loop {
        let page = entries(&server, &id, &format!("?cursor={cursor}")).await;
        let Some(last) = page.last() else { break };
        let at = time::OffsetDateTime::parse(
            last["timestamp"].as_str().unwrap(),
            &time::format_description::well_known::Rfc3339,
        );
        cursor = (at.unwrap().unix_timestamp_nanos() / 1_000_000) as i64 + 1;
        kept.extend(page);
    }
    let bytes: usize = kept.iter().map(|entry| entry["message"].as_str().unwrap().len()).sum();
    assert!(kept.last().unwrap()["message"].as_str().unwrap().starts_with("59 "), "the newest stays");
    assert!((3 << 20..6 << 20).contains(&bytes), "{bytes}");
}
