//! The description of the API and the API itself agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod support;

use http::Method;
use support::Server;

#[tokio::test]
async fn every_described_route_exists_and_asks_for_a_key() {
    let server = Server::start().await;
    let document = server.client.get("/openapi.json").await.json;
    let mut count = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace("{id}", "inobody").replace("{run_id}", "nobody").replace("{path}", "nothing");
            let path = path.replace("{name}", "list_files").replace("{member}", "nobody");
            // It would go on for ever.
            if path == "/api/v1/sse" {
                continue;
            }
            let answer = server.client.call(method.clone(), &path, &[], None).await;
            assert_ne!(answer.status, 405, "{method} {path}");
            assert_ne!(answer.json["message"], "no such route", "{method} {path}");
            let described = operation["responses"].as_object().unwrap();
            assert!(described.contains_key(&answer.status.to_string()), "{method} {path}: {}", answer.status);
            if operation["security"].is_null() {
                let stranger = server.client.raw(method.clone(), &path, &[], "".into()).await;
                assert_eq!(stranger.status, 401, "{method} {path}");
            }
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
    assert!(server.client.get("/docs").await.text.contains("/v2/sandboxes"));
}
