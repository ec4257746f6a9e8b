//! One sandbox for a run: races, failures, replacement and cleanup, with a node that runs nothing and fails on demand.

use crate::support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use isopod_wire::node::{EndReason, NodeState};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use support::hostile::{ENDLESS, MUCH, NONSENSE};
use support::redis::RedisServer;
use support::runs::{execute, rechecks_often, sandbox_of};
use support::server::until;
use support::{Answer, Server};

#[tokio::test]
async fn agents_that_call_at_once_get_one_sandbox() {
    let server = Server::start().await;
    server.node.faults.create_takes.store(100, Ordering::Relaxed);
    let answers = join_all((0..20).map(|_| execute(&server, "run-1", "x"))).await;
    let first = sandbox_of(&answers[0]);
    assert!(answers.iter().all(|answer| sandbox_of(answer) == first));
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 1);
    assert_ne!(sandbox_of(&execute(&server, "run-2", "x").await), first, "each run has its own");
}

#[tokio::test]
async fn a_failed_cell_is_a_result_and_the_sandbox_stays() {
    let server = Server::start().await;
    let good = execute(&server, "r", "hello").await;
    assert_eq!(good.json["success"], true);
    assert_eq!(good.json["result"], "STDOUT:\nhello");
    assert_eq!(good.json["files_generated"], json!([]));
    assert_eq!(execute(&server, "r", "").await.json["result"], "Execution successful (No stdout).");
    let bad = execute(&server, "r", "raise").await;
    assert_eq!((bad.status, &bad.json["success"]), (200, &json!(false)));
    assert_eq!(bad.json["error"], "RUNTIME ERROR: E: v\nt");
    assert_eq!(bad.json["logs"], "STDOUT:\nraise");
    assert_eq!(sandbox_of(&bad), sandbox_of(&good));
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 1);
}

/// The code in a sandbox chooses these responses.
#[tokio::test]
async fn what_a_sandbox_answers_is_bounded_however_much_it_sends() {
    let server = Server::start().await;
    let much = execute(&server, "r", MUCH).await.json;
    assert_eq!((&much["success"], &much["output"]["truncated"]), (&json!(true), &json!(true)));
    assert_eq!(much["output"]["stdout"].as_str().unwrap().len(), 4 << 20);
    assert!((50..70).contains(&much["output"]["results"].as_array().unwrap().len()));
    for what in [ENDLESS, NONSENSE] {
        let body = json!({ "code": what, "timeout": 1 });
        let ended = server.client.post("/runtime/r/execute", body).await.json;
        assert_eq!(ended["success"], json!(false), "{what}");
        let error = ended["error"].as_str().unwrap();
        assert!(what == ENDLESS || error.starts_with("Sandbox failed: "), "{error}");
    }
    assert_eq!(execute(&server, "r", "x").await.json["success"], json!(true));
}

/// The row cannot be written after the sandbox was created.
#[tokio::test]
async fn a_sandbox_that_cannot_be_recorded_is_not_kept() {
    let server = Server::start().await;
    let (refuse, accept) = if support::postgres::is_wanted() {
        (
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; \
             CREATE TRIGGER refuse BEFORE UPDATE OF sandbox ON sessions FOR EACH ROW EXECUTE FUNCTION no()",
            "DROP TRIGGER refuse ON sessions",
        )
    } else {
        (
            "CREATE TRIGGER refuse BEFORE UPDATE OF sandbox ON sessions BEGIN SELECT RAISE(ABORT, 'no'); END",
            "DROP TRIGGER refuse",
        )
    };
    server.sql(refuse).await;
    let refused = execute(&server, "r", "x").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 1);
    until("it is removed", || async { server.node.count() == 0 }).await;
    server.sql(accept).await;
    sandbox_of(&execute(&server, "r", "x").await);
}

/// The server dies while the sandbox is created, or right after.
#[tokio::test]
async fn a_server_that_dies_while_it_makes_a_sandbox_leaks_none() {
    for after in [20, 150] {
        let mut server = Server::start_with(rechecks_often).await;
        server.node.faults.create_takes.store(100, Ordering::Relaxed);
        let client = server.client.clone();
        let calling = tokio::spawn(async move {
            let body = json!({ "code": "x" });
            let headers = [("x-api-key", client.key.as_str()), ("content-type", "application/json")];
            let _ = client.open(http::Method::POST, "/runtime/r/execute", &headers, body.to_string().into()).await;
        });
        until("it is being made", || async { server.node.creates.load(Ordering::Relaxed) == 1 }).await;
        tokio::time::sleep(Duration::from_millis(after)).await;
        server.crash().await;
        let _ = calling.await;
        let server = server.start_again().await;
        let sandbox = sandbox_of(&execute(&server, "r", "x").await);
        until("one is left", || async { server.node.count() == 1 }).await;
        assert!(server.node.state_of(&sandbox).is_some());
        assert_eq!(server.client.delete("/runtime/r/cleanup").await.json["killed"], true);
        assert_eq!(server.node.count(), 0);
    }
}

#[tokio::test]
async fn a_long_wait_pauses_the_sandbox_and_the_next_call_resumes_it() {
    let server = Server::start().await;
    let sandbox = sandbox_of(&execute(&server, "r", "x").await);
    server.client.post(&format!("/sandboxes/{sandbox}/timeout"), json!({ "timeout": 0 })).await;
    until("it is paused", || async { server.node.state_of(&sandbox) == Some(NodeState::Frozen) }).await;
    assert_eq!(server.client.get("/runtime/r/session").await.json["state"], "paused");
    let answer = execute(&server, "r", "x").await;
    assert_eq!(sandbox_of(&answer), sandbox);
    assert_eq!(answer.json["restarted"], false);
    assert_eq!(server.client.get("/runtime/r/session").await.json["state"], "running");
}

#[tokio::test]
async fn a_dead_sandbox_is_replaced_and_the_caller_is_told() {
    let server = Server::start().await;
    let old = sandbox_of(&execute(&server, "r", "x").await);
    server.node.die(&old, EndReason::OutOfMemory);
    until("it is gone", || async { server.client.get(&format!("/sandboxes/{old}")).await.status == 404 }).await;
    let answer = execute(&server, "r", "x").await;
    assert_ne!(sandbox_of(&answer), old);
    assert_eq!((&answer.json["restarted"], &answer.json["previous_sandbox_id"]), (&json!(true), &json!(old)));
    let next = execute(&server, "r", "x").await;
    assert_eq!((&next.json["restarted"], &next.json["restarts"]), (&json!(false), &json!(1)));
}

/// Without Redis, the server's own store is the map. No call creates a second sandbox, and none is lost.
#[tokio::test]
async fn a_new_server_finds_the_sandbox_of_a_run_again() {
    let mut server = Server::start().await;
    let sandbox = sandbox_of(&execute(&server, "r", "x").await);
    server.crash().await;
    let server = server.start_again().await;
    assert_eq!(sandbox_of(&execute(&server, "r", "x").await), sandbox);
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 1);
    assert_eq!(server.client.delete("/runtime/r/cleanup").await.json["killed"], true);
    assert_eq!(server.node.count(), 0);
}

/// A sandbox is created for ten minutes. Every call extends it by as much, or by the time limit of the call.
#[tokio::test]
async fn every_call_gives_the_sandbox_its_time_again() {
    let server = Server::start().await;
    let sandbox = sandbox_of(&execute(&server, "r", "x").await);
    let left = async || {
        let session = server.client.get("/runtime/r/session").await.json;
        let end = OffsetDateTime::parse(session["end_at"].as_str().unwrap(), &Rfc3339).unwrap();
        (end - OffsetDateTime::now_utc()).whole_seconds()
    };
    assert!((540..=600).contains(&left().await));
    server.client.post(&format!("/sandboxes/{sandbox}/timeout"), json!({ "timeout": 30 })).await;
    assert!(left().await <= 30);
    execute(&server, "r", "x").await;
    assert!((540..=600).contains(&left().await), "the lease did not move");
    server.client.post("/runtime/r/execute", json!({ "code": "x", "timeout": 3000 })).await;
    assert!(left().await > 2900, "a long call would outlive its sandbox");
    let keyless = server.client.raw(http::Method::POST, "/runtime/r/execute", &[], "{}".into()).await;
    assert_eq!(keyless.status, 401, "without a key there is no sandbox");
}

#[tokio::test]
async fn cleanup_may_be_asked_for_again_and_again_under_both_names() {
    let server = Server::start().await;
    let first = server.client.delete("/runtime/r/cleanup").await;
    assert_eq!((first.status, &first.json["killed"]), (200, &json!(false)), "there was nothing");
    let sandbox = sandbox_of(&execute(&server, "r", "x").await);
    let done = server.client.delete("/cleanup/r").await;
    let expected = json!({ "status": "cleaned", "run_id": "r", "killed": true, "sandbox_ids": [sandbox] });
    assert_eq!(done.json, expected);
    assert_eq!(server.node.count(), 0);
    let again = server.client.delete("/runtime/r/cleanup").await;
    assert_eq!((again.status, &again.json["killed"]), (200, &json!(false)));
    let stranger = server.client.raw(http::Method::DELETE, "/runtime/r/cleanup", &[], "".into()).await;
    assert_eq!(stranger.status, 401);
}

/// A failure is a 500 with the error.
#[tokio::test]
async fn a_kill_that_fails_keeps_its_note_and_is_tried_until_it_is_confirmed() {
    let mut server = Server::start_with(rechecks_often).await;
    sandbox_of(&execute(&server, "r", "x").await);
    server.node.faults.kill_fails.store(true, Ordering::Relaxed);
    let failed = server.client.delete("/runtime/r/cleanup").await;
    assert_eq!(failed.status, 500);
    assert!(failed.json["error"].is_string(), "{failed:?}");
    // Neither time nor a new server forgets it.
    server.crash().await;
    let server = server.start_again().await;
    assert_eq!(server.node.count(), 1);
    server.node.faults.kill_fails.store(false, Ordering::Relaxed);
    until("it is gone", || async { server.node.count() == 0 }).await;
    until("the session is over", || async { server.client.get("/runtime/r/session").await.status == 404 }).await;
    assert_eq!(server.client.delete("/runtime/r/cleanup").await.status, 200);
}

#[tokio::test]
async fn a_call_that_waits_through_a_cleanup_makes_no_sandbox() {
    let server = Server::start().await;
    server.node.faults.create_takes.store(300, Ordering::Relaxed);
    let making = execute(&server, "r", "x");
    let ending = async {
        until("it is being made", || async { server.node.creates.load(Ordering::Relaxed) == 1 }).await;
        server.client.delete("/runtime/r/cleanup").await
    };
    let waiting = async {
        until("it is being made", || async { server.node.creates.load(Ordering::Relaxed) == 1 }).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        execute(&server, "r", "x").await
    };
    let (_, ended, waited) = futures::join!(making, ending, waiting);
    assert_eq!((ended.status, &ended.json["killed"]), (200, &json!(true)));
    assert!(waited.status == 409 || waited.json["success"] == false || waited.status == 404, "{waited:?}");
    assert_eq!((server.node.count(), server.node.creates.load(Ordering::Relaxed)), (0, 1));
    server.node.faults.create_takes.store(0, Ordering::Relaxed);
    sandbox_of(&execute(&server, "r", "x").await);
}

/// There is no capacity for a sandbox.
#[tokio::test]
async fn a_full_host_is_said_in_words_that_agents_know() {
    let server = Server::start().await;
    server.node.faults.full.store(true, Ordering::Relaxed);
    let refused = execute(&server, "r", "x").await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json["error"], "Failed to initialize E2B Sandbox connection.");
    assert!(refused.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn bad_run_ids_paths_and_bodies_start_nothing() {
    let server = Server::start().await;
    for id in ["..%2f..%2fetc", "%2e%2e", "a%00b", "a%20b", ".hidden", "start", &"a".repeat(129)] {
        for path in [format!("/runtime/{id}/execute"), format!("/runtime/{id}/tools/list_files")] {
            assert_eq!(server.client.post(&path, json!({ "code": "x" })).await.status, 400, "{path}");
        }
        assert_eq!(server.client.delete(&format!("/cleanup/{id}")).await.status, 400, "{id}");
        assert_eq!(server.client.get(&format!("/runtime/{id}/files/x")).await.status, 400, "{id}");
    }
    for path in ["..%2fx", "a/%2e%2e/b", "%2fetc%2fpasswd", "a%2f%2fb", "a%00"] {
        let path = format!("/runtime/r/files/{path}");
        assert_eq!(server.client.get(&path).await.status, 400, "{path}");
        assert_eq!(server.client.put(&path, json!({})).await.status, 400, "{path}");
    }
    let bodies = [
        json!({}),
        json!({ "code": "x", "command": "y" }),
        json!({ "command": "x", "language": "python" }),
        json!({ "code": 1 }),
        json!({ "code": "x", "timeout": -1 }),
        json!({ "code": "x", "timeout": 1e9 }),
        json!({ "code": "x", "unknown": 1 }),
        json!({ "code": "x", "agent_id": "" }),
        json!({ "code": "x", "files": [{ "path": "../x", "content": "" }] }),
        json!({ "code": "x", "files": [{ "path": "x", "content": "%", "encoding": "base64" }] }),
        json!([]),
    ];
    for body in bodies {
        assert_eq!(server.client.post("/runtime/r/execute", body.clone()).await.status, 400, "{body}");
    }
    let reserved = json!({ "templateID": "base", "metadata": { "isopod.session": "isopod:run/r" } });
    assert_eq!(server.client.post("/v2/sandboxes", reserved).await.status, 400);
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn teams_do_not_share_runs() {
    let server = Server::start().await;
    let others = server.other_team().await;
    let ours = sandbox_of(&execute(&server, "r", "x").await);
    server.client.put("/runtime/r/files/secret.txt", json!("ours")).await;
    assert_eq!(others.get("/runtime/r/files/secret.txt").await.status, 404);
    assert_eq!(others.get("/runtime/r/session").await.status, 404);
    assert_eq!(others.delete("/runtime/r/cleanup").await.json["killed"], false);
    let theirs = others.post("/runtime/r/execute", json!({ "code": "x" })).await;
    assert_ne!(sandbox_of(&theirs), ours);
    assert_eq!(server.node.count(), 2);
}

/// Directories without a team in their names belong to the first team that uses them.
#[tokio::test]
async fn a_shared_directory_has_one_team_for_each_run() {
    let shared = tempfile::tempdir().unwrap();
    let base = shared.path().to_owned();
    let server = Server::start_with(move |config| config.agents.sessions.shared_files = Some(base.clone())).await;
    let others = server.other_team().await;
    assert_eq!(server.client.put("/runtime/r/files/a/x.csv", json!(1)).await.status, 201);
    assert_eq!(std::fs::read(shared.path().join("sessions/r/input/a/x.csv")).unwrap(), b"1");
    assert_eq!(others.get("/runtime/r/files/a/x.csv").await.status, 404);
    assert_eq!(others.put("/runtime/r/files/y", json!(1)).await.status, 404);
    assert_eq!(others.post("/runtime/r/execute", json!({ "code": "x" })).await.status, 404);
}

#[tokio::test]
async fn tools_read_write_and_list_the_files_of_a_run() {
    let server = Server::start().await;
    let listed = server.client.get("/runtime/tools").await.json;
    let names: Vec<&str> = listed["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["execute_python", "execute_code", "run_command", "read_file", "write_file", "list_files"]);
    let required = |tool: &Value| tool["parameters"]["required"].clone();
    let required: Vec<Value> = listed["tools"].as_array().unwrap().iter().map(required).collect();
    let expected = json!([["code"], ["code", "language"], ["command"], ["filename"], ["filename", "content"], []]);
    assert_eq!(json!(required), expected);
    let call = |name: &str, arguments: Value| {
        let (client, path) = (server.client.clone(), format!("/runtime/r/tools/{name}"));
        async move { client.post(&path, arguments).await }
    };
    let unknown = call("web_search", json!({ "query": "x" })).await;
    assert_eq!((unknown.status, &unknown.json["error"]), (404, &json!("Unknown tool: web_search")));
    assert_eq!(unknown.json["success"], false);
    let unknown = call("no_such_tool", json!({})).await;
    assert_eq!((unknown.status, &unknown.json["error"]), (404, &json!("Unknown tool: no_such_tool")));
    assert_eq!(call("read_file", json!({ "filename": "../x" })).await.status, 400);
    let missing = call("read_file", json!({ "filename": "none" })).await;
    assert_eq!((missing.status, &missing.json["success"]), (200, &json!(false)));
    let written = call("write_file", json!({ "filename": "a/notes.txt", "content": "one" })).await;
    assert_eq!(written.json["files_generated"], json!(["a/notes.txt"]));
    let put = server.client.put("/runtime/r/files/b/notes.txt", json!("two")).await;
    assert_eq!(put.status, 201, "{put:?}");
    assert_eq!(call("list_files", json!({})).await.json["result"], json!(["a/notes.txt", "b/notes.txt"]));
    assert_eq!(call("read_file", json!({ "filename": "a/notes.txt" })).await.json["result"], "one");
    let long = "é".repeat(50_001);
    call("write_file", json!({ "filename": "long", "content": long })).await;
    let read = call("read_file", json!({ "filename": "long" })).await.json["result"].as_str().unwrap().to_owned();
    assert!(read.ends_with("é...[TRUNCATED]...") && read.chars().count() == 50_017);
    assert_eq!(server.node.creates.load(Ordering::Relaxed), 0, "no sandbox is needed for this");
    assert!(!sandbox_of(&call("execute_python", json!({ "code": "x" })).await).is_empty());
}

#[tokio::test]
async fn the_library_is_private_first_and_artifacts_can_be_promoted_into_it() {
    let server = Server::start().await;
    let key = server.client.key.clone();
    let form = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"data.csv\"\r\n\r\nshared\r\n--B--\r\n";
    let kind = ("content-type", "multipart/form-data; boundary=B");
    let upload = |client: &'static str, body: &'static str| {
        let (server, key) = (&server, key.clone());
        async move {
            let headers = [("x-api-key", key.as_str()), kind, ("x-raro-client-id", client)];
            server.client.raw(http::Method::POST, "/runtime/library/upload", &headers, body.into()).await.status
        }
    };
    assert_eq!(upload("public", form).await, 201);
    assert_eq!(upload("not ok", form).await, 400);
    assert_eq!(upload("a", "--B--\r\n").await, 400);
    let bad = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../x\"\r\n\r\nx\r\n--B--\r\n";
    assert_eq!(upload("a", bad).await, 400);
    let get = |client: &'static str| {
        let server = &server;
        async move {
            let path = "/runtime/library/data.csv";
            server.client.call(http::Method::GET, path, &[("x-raro-client-id", client)], None).await.text
        }
    };
    assert_eq!(get("a").await, "shared");
    server.client.post("/runtime/r/tools/write_file", json!({ "filename": "data.csv", "content": "mine" })).await;
    let artifacts = server.client.get("/runtime/artifacts/r").await.json;
    assert_eq!(artifacts["artifacts"][0]["filename"], "data.csv");
    assert_eq!(artifacts["artifacts"][0]["content_type"], "text/csv; charset=utf-8");
    let promote = "/runtime/artifacts/r/files/data.csv/promote";
    let promoted = server.client.call(http::Method::POST, promote, &[("x-raro-client-id", "a")], None).await;
    assert_eq!(promoted.status, 201, "{promoted:?}");
    let at = |name: &str| OffsetDateTime::parse(promoted.json[name].as_str().unwrap(), &Rfc3339).unwrap();
    assert_eq!(at("expires_at") - at("promoted_at"), time::Duration::days(7));
    assert_eq!((get("a").await.as_str(), get("b").await.as_str()), ("mine", "shared"));
    let attached = server.client.post("/runtime/other/library", json!({ "files": ["data.csv"] })).await;
    assert_eq!(attached.status, 200, "{attached:?}");
    assert_eq!(server.client.get("/runtime/other/files/data.csv").await.text, "shared");
    assert_eq!(server.client.get("/runtime/artifacts").await.json["runs"][0]["run_id"], "r");
    assert_eq!(server.client.delete("/runtime/artifacts/r").await.json["removed"], 1);
    assert_eq!(server.client.get("/runtime/artifacts/r/files/data.csv").await.status, 404);
}

/// What a promoted file is said to be, by the answer to its promotion and by the list.
#[tokio::test]
async fn a_promoted_artifact_says_where_it_came_from_until_an_upload_replaces_it() {
    let server = Server::start().await;
    let write = "/runtime/r/tools/write_file?agent_id=writer";
    let wrote = server.client.post(write, json!({ "filename": "deep/data.csv", "content": "mine" })).await;
    assert_eq!(wrote.status, 200, "{wrote:?}");
    let artifact = server.client.get("/runtime/artifacts/r").await.json["artifacts"][0].clone();
    assert_eq!(promote(&server, "deep/none.csv").await.status, 404);
    assert_eq!(library(&server).await, json!([]));

    let promoted = promote(&server, "deep/data.csv").await;
    assert_eq!(promoted.status, 201, "{promoted:?}");
    for name in ["filename", "agent_id", "generated_at", "size_bytes", "content_type"] {
        assert_eq!(promoted.json[name], artifact[name], "{name}");
    }
    assert_eq!((&promoted.json["client_id"], &promoted.json["run_id"]), (&json!("a"), &json!("r")));
    let listed = library(&server).await;
    assert_eq!(
        listed,
        json!([{
            "filename": "deep/data.csv", "origin": "a", "size_bytes": 4, "content_type": "text/csv; charset=utf-8",
            "run_id": "r", "agent_id": "writer", "generated_at": artifact["generated_at"],
            "expires_at": promoted.json["expires_at"],
        }])
    );

    upload(&server, "deep/data.csv", "uploaded").await;
    let listed = library(&server).await;
    assert_eq!((&listed[0]["size_bytes"], &listed[0]["expires_at"]), (&json!(8), &Value::Null), "{listed}");
    assert_eq!(promotions(&server).await, 0);

    assert_eq!(promote(&server, "deep/data.csv").await.status, 201);
    let path = "/runtime/library/deep/data.csv";
    assert_eq!(server.client.call(http::Method::DELETE, path, &[CLIENT_A], None).await.status, 204);
    assert_eq!((library(&server).await, promotions(&server).await), (json!([]), 0), "both are gone");
}

#[tokio::test]
async fn promoted_files_go_when_their_time_is_up_and_uploads_of_their_names_stay() {
    let server = Server::start_with(|config| {
        config.control.recheck_every = Duration::from_millis(10);
        config.agents.sessions.keep_promoted = Duration::from_millis(1);
    })
    .await;
    for name in ["data.csv", "deep/er/data.csv"] {
        server.client.post("/runtime/r/tools/write_file", json!({ "filename": name, "content": "mine" })).await;
    }
    upload(&server, "data.csv", "uploaded").await;
    assert_eq!(promote(&server, "data.csv").await.status, 201);
    assert_eq!(promote(&server, "deep/er/data.csv").await.status, 201);
    until("both have expired", || async { promotions(&server).await == 0 }).await;
    let listed = library(&server).await;
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["size_bytes"]), (1, &json!(8)), "{listed}");
    assert_eq!(std::fs::read_dir(promoted_files(&server)).unwrap().count(), 0, "neither files nor empty directories");
    assert_eq!(server.client.get("/runtime/artifacts/r/files/data.csv").await.text, "mine", "the artifact stays");
}

/// A server that dies between the file and its row, or that cannot remove the file, leaves the row for the next sweep.
#[tokio::test]
async fn a_promoted_file_that_is_gone_or_in_trouble_is_swept_in_the_end() {
    let server = Server::start_with(|config| config.control.recheck_every = Duration::from_millis(10)).await;
    for name in ["gone.txt", "kept.txt", "other.txt"] {
        server.client.post("/runtime/r/tools/write_file", json!({ "filename": name, "content": "x" })).await;
    }
    for name in ["gone.txt", "kept.txt"] {
        assert_eq!(promote(&server, name).await.status, 201);
    }
    std::fs::remove_file(promoted_files(&server).join("gone.txt")).unwrap();
    server.sql("UPDATE promotions SET expires_at = 0 WHERE path = 'gone.txt'").await;
    until("the row of the missing file is gone", || async { promotions(&server).await == 1 }).await;
    assert_eq!(library(&server).await[0]["filename"], "kept.txt");

    // A directory that cannot be opened: the row stays, and those of others are still swept.
    let place = promoted_files(&server);
    let aside = place.with_extension("aside");
    std::fs::rename(&place, &aside).unwrap();
    std::fs::write(&place, "in the way").unwrap();
    let other = "/runtime/artifacts/r/files/other.txt/promote";
    assert_eq!(server.client.call(http::Method::POST, other, &[], None).await.status, 201);
    server.sql("UPDATE promotions SET expires_at = 0").await;
    until("the other one is gone", || async { promotions(&server).await == 1 }).await;
    assert!(aside.join("kept.txt").is_file());
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&aside, &place).unwrap();
    until("the file and its row are gone", || async { promotions(&server).await == 0 }).await;
    assert!(!place.join("kept.txt").exists());
}

const CLIENT_A: (&str, &str) = ("x-raro-client-id", "a");

/// Promotes an artifact of the run `r` into the library of the client `a`.
async fn promote(server: &Server, name: &str) -> Answer {
    let path = format!("/runtime/artifacts/r/files/{name}/promote");
    server.client.call(http::Method::POST, &path, &[CLIENT_A], None).await
}

async fn library(server: &Server) -> Value {
    server.client.call(http::Method::GET, "/runtime/library", &[CLIENT_A], None).await.json["files"].clone()
}

async fn upload(server: &Server, name: &str, contents: &str) {
    let part = format!("Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"");
    let form = format!("--B\r\n{part}\r\n\r\n{contents}\r\n--B--\r\n");
    let headers = [("x-api-key", &*server.client.key), ("content-type", "multipart/form-data; boundary=B"), CLIENT_A];
    let path = "/runtime/library/upload";
    assert_eq!(server.client.raw(http::Method::POST, path, &headers, form.into()).await.status, 201);
}

/// How many promotions are recorded.
async fn promotions(server: &Server) -> usize {
    server.texts("SELECT path FROM promotions").await.len()
}

/// Where the promoted files of the client `a` are.
fn promoted_files(server: &Server) -> std::path::PathBuf {
    let teams = server.database().parent().unwrap().join("sessions/.promoted");
    std::fs::read_dir(teams).unwrap().next().unwrap().unwrap().path().join("a")
}

/// What others read in Redis follows the sandbox, and a Redis outage loses nothing.
#[tokio::test]
async fn redis_follows_the_sandbox_through_its_life_and_through_its_own_absence() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let server = Server::start_with(move |config| {
        rechecks_often(config);
        config.agents.sessions.redis_url = Some(url.clone());
    })
    .await;
    let sandbox = sandbox_of(&execute(&server, "r", "x").await);
    assert_eq!(redis.ask(&["GET", "raro:e2b_session:r"]), sandbox);
    let left: i64 = redis.ask(&["TTL", "raro:e2b_session:r"]).parse().unwrap();
    assert!((500..=800).contains(&left), "the entry ends with the sandbox's time: {left}");
    server.client.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await;
    until("what has no end is kept", || async { redis.ask(&["TTL", "raro:e2b_session:r"]) == "-1" }).await;

    redis.stop();
    assert_eq!(sandbox_of(&execute(&server, "r", "x").await), sandbox, "without Redis the store knows");
    let second = sandbox_of(&execute(&server, "second", "x").await);
    redis.start_again();
    until("what was missed is written", || async {
        redis.ask(&["GET", "raro:e2b_session:r"]) == sandbox && redis.ask(&["GET", "raro:e2b_session:second"]) == second
    })
    .await;
    server.node.die(&second, EndReason::GuestDied);
    until("a dead one is forgotten", || async { redis.ask(&["EXISTS", "raro:e2b_session:second"]) == "0" }).await;
    server.client.delete("/runtime/r/cleanup").await;
    assert_eq!(redis.ask(&["EXISTS", "raro:e2b_session:r"]), "0");
}

/// Run ids belong to their team. Another team cannot write what the first team's programs read.
#[tokio::test]
async fn two_teams_with_runs_of_one_name_have_nothing_in_common() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = Server::start_with(move |config| {
        rechecks_often(config);
        config.agents.sessions.redis_url = Some(url.clone());
    })
    .await;
    let other = server.other_team().await;
    let theirs_of = |answer: Answer| sandbox_of(&answer);
    let mine = sandbox_of(&execute(&server, "r", "x").await);
    let theirs = theirs_of(other.post("/runtime/r/execute", json!({ "code": "x" })).await);
    assert_ne!(mine, theirs);
    assert_eq!(redis.ask(&["GET", "raro:e2b_session:r"]), mine);
    // Nor does it if the other team's run ends or comes first.
    other.delete("/runtime/r/cleanup").await;
    assert_eq!(redis.ask(&["GET", "raro:e2b_session:r"]), mine);
    assert_eq!(sandbox_of(&execute(&server, "r", "x").await), mine);
    assert_eq!(other.post("/runtime/early/execute", json!({ "code": "x" })).await.status, 200);
    assert_eq!(redis.ask(&["EXISTS", "raro:e2b_session:early"]), "0");
    // While one team's sandbox is being created, the other's call does not wait for it.
    server.node.faults.create_takes.store(3_600_000, Ordering::Relaxed);
    let client = server.client.clone();
    let slow = tokio::spawn(async move { client.post("/runtime/locked/execute", json!({ "code": "x" })).await });
    let before = server.node.creates.load(Ordering::Relaxed);
    until("the first is being made", || async { server.node.creates.load(Ordering::Relaxed) > before }).await;
    server.node.faults.create_takes.store(0, Ordering::Relaxed);
    let rechecks_often = other.post("/runtime/locked/execute", json!({ "code": "x" })).await;
    assert_eq!(rechecks_often.status, 200, "{rechecks_often:?}");
    slow.abort();
}

/// Files for a run that never ran are not kept forever.
#[tokio::test]
async fn files_of_runs_that_never_ran_go_and_those_of_others_stay() {
    let server = Server::start_with(|config| {
        config.control.recheck_every = Duration::from_millis(10);
        config.agents.sessions.keep_files = Duration::from_secs(3600);
    })
    .await;
    let key = server.client.key.clone();
    let put = |path: &'static str| {
        let headers = [("x-api-key", key.as_str())];
        let client = server.client.clone();
        async move { client.raw(http::Method::PUT, path, &headers, "contents".into()).await.status }
    };
    assert_eq!(put("/runtime/old/files/deep/a.txt").await, 201);
    assert_eq!(put("/runtime/fresh/files/a.txt").await, 201);
    assert_eq!(put("/runtime/open/files/a.txt").await, 201);
    sandbox_of(&execute(&server, "open", "x").await);
    let sessions = server.database().parent().unwrap().join("sessions");
    let team = std::fs::read_dir(&sessions).unwrap().next().unwrap().unwrap().path();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    for run in ["old", "open"] {
        set_times(&team.join(run), long_ago);
    }
    until("the old one is gone", || async { !team.join("old").exists() }).await;
    assert!(team.join("fresh/input/a.txt").is_file(), "too new");
    assert!(team.join("open/input/a.txt").is_file(), "its session goes on");
}

/// Sets the modification time of everything below.
fn set_times(place: &std::path::Path, time: std::time::SystemTime) {
    if place.is_dir() {
        for entry in std::fs::read_dir(place).unwrap() {
            set_times(&entry.unwrap().path(), time);
        }
    }
    std::fs::File::open(place).unwrap().set_modified(time).unwrap();
}

/// Two servers that share nothing but Redis.
#[tokio::test]
async fn servers_that_share_a_redis_make_one_sandbox_for_a_run() {
    let redis = RedisServer::start();
    let (one, two) = (redis.url(), redis.url());
    let first = Server::start_with(move |config| config.agents.sessions.redis_url = Some(one.clone())).await;
    let second = Server::start_with(move |config| config.agents.sessions.redis_url = Some(two.clone())).await;
    first.node.faults.create_takes.store(100, Ordering::Relaxed);
    second.node.faults.create_takes.store(100, Ordering::Relaxed);
    let (a, b) = futures::join!(execute(&first, "r", "x"), execute(&second, "r", "x"));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{a:?} {b:?}");
    assert_eq!(first.node.count() + second.node.count(), 1);
    for server in [&first, &second] {
        server.client.delete("/runtime/r/cleanup").await;
    }
    assert_eq!(first.node.count() + second.node.count(), 0);
    let again = execute(&second, "r", "x").await;
    assert_eq!(again.status, 200, "after the cleanup anybody may: {again:?}");
}

/// Another program that uses the same key has created the sandbox with an SDK.
#[tokio::test]
async fn a_sandbox_that_other_code_noted_in_redis_is_used() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = Server::start_with(move |config| config.agents.sessions.redis_url = Some(url.clone())).await;
    let made = server.create(json!({ "timeout": 600 })).await;
    redis.ask(&["SETEX", "raro:e2b_session:r", "3600", &made]);
    assert_eq!(sandbox_of(&execute(&server, "r", "x").await), made);
    redis.ask(&["SETEX", "raro:e2b_session:stale", "3600", "igone"]);
    assert_ne!(sandbox_of(&execute(&server, "stale", "x").await), "igone");
}
