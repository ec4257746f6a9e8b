//! The description of the API, the API itself and its clients agree.

mod client;
use crate::support;

use std::collections::BTreeSet;

use http::Method;
use isopod_server::declared_routes;
use serde_json::Value;
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
            // It would never end.
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

#[tokio::test]
async fn every_registered_route_is_described_and_no_other() {
    let server = Server::start().await;
    let answer = server.client.get("/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let paths = answer.json["paths"].as_object().unwrap();
    let described: BTreeSet<_> = paths
        .iter()
        .flat_map(|(path, operations)| {
            operations.as_object().unwrap().keys().map(move |method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let mut registered = BTreeSet::new();
    for route in declared_routes() {
        match route.documented_path() {
            Some(path) => assert!(registered.insert((path, route.method.to_owned())), "{route:?} is there twice"),
            None => {
                assert!(route.method == "ANY" || route.path.starts_with("/dashboard"), "{route:?} is not described")
            }
        }
    }
    assert_eq!(registered, described);
}

#[tokio::test]
async fn the_document_refers_to_nothing_that_it_does_not_have() {
    let server = Server::start().await;
    let document = server.client.get("/openapi.json").await.json;
    let mut places = vec![&document];
    let mut count = 0;
    while let Some(place) = places.pop() {
        if let Some(reference) = place.get("$ref").and_then(Value::as_str) {
            let found = document.pointer(reference.strip_prefix('#').unwrap());
            assert!(found.is_some(), "{reference} is nowhere");
            count += 1;
        }
        match place {
            Value::Object(fields) => places.extend(fields.values()),
            Value::Array(items) => places.extend(items),
            _ => {}
        }
    }
    assert!(count > 500, "{count}");
}
