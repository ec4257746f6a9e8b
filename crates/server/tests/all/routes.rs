//! Access to routes. Every kind of caller requests every route of the server, and the results are compared with the
//! table in docs/security/routes.md. `ISOPOD_WRITE_DOCS=1 cargo test -p isopod-server --test all routes` regenerates
//! the table. Review the difference.

mod requests;
use crate::support;
mod things;

use std::fmt::Write as _;

use http::Method;
use isopod_api::{DeclaredRoute, Needs};
use isopod_server::declared_routes;
use isopod_store::Scope;
use serde_json::json;

use requests::request_to;
use support::{Client, Server};
use things::Things;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security/routes.md");

/// In the order of the table's columns.
const CALLERS: [&str; 7] = ["no key", "read-only", "agent", "another agent", "team", "another team", "admin"];
/// Callers without write access come before those with it.
const ORDER: [usize; 7] = [0, 1, 3, 5, 2, 4, 6];
const ANOTHER_TEAM: usize = 5;
const WRONG: &str = "not understood";

#[tokio::test]
async fn every_route_answers_every_caller_as_the_table_says() {
    let (server, things) = Things::make().await;
    let clients = callers(&server).await;
    let routes = declared_routes();
    let mut seen = vec![[""; CALLERS.len()]; routes.len()];
    for caller in ORDER {
        if caller == ORDER[4] {
            things.are_all_there(&server.client).await;
        }
        for (route, row) in routes.iter().zip(&mut seen) {
            row[caller] = outcome(&things, route, caller, clients[caller].as_ref()).await;
        }
    }
    let page = page_of(&routes, &seen);
    let wrong: Vec<_> = page.lines().filter(|line| line.contains(WRONG)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    if std::env::var_os("ISOPOD_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap();
    for (line, (now, then)) in page.lines().zip(written.lines()).enumerate() {
        assert_eq!(now, then, "line {} of docs/security/routes.md is not what the server does", line + 1);
    }
    assert_eq!(page.lines().count(), written.lines().count(), "docs/security/routes.md has other routes");
}

async fn callers(server: &Server) -> [Option<Client>; 7] {
    [
        None,
        Some(server.key_of(Scope::ReadOnly).await),
        Some(server.key_of(Scope::Agent(things::AGENT.to_owned())).await),
        Some(server.key_of(Scope::Agent("somebody-else".to_owned())).await),
        Some(server.client.clone()),
        Some(server.other_team().await),
        Some(server.key_of(Scope::Admin).await),
    ]
}

/// The result of one caller for one route, in a word.
async fn outcome(things: &Things, route: &DeclaredRoute, caller: usize, client: Option<&Client>) -> &'static str {
    let request = request_to(things, route);
    let mut headers = request.headers.clone();
    if let Some(client) = client {
        headers.push(("x-api-key", &client.key));
    }
    // Only the head of the response, because some never end.
    let answer = things.anybody.open(request.method.clone(), &request.path, &headers, request.body.clone()).await;
    match answer.status().as_u16() {
        401 => "401",
        403 => "403",
        // The result says nothing about access. Fix the request in `requests`.
        405 | 500 => WRONG,
        _ if route.rule.needs == Needs::Nothing => "yes",
        404 if caller == ANOTHER_TEAM => "404",
        400 if caller == ANOTHER_TEAM && route.path.contains('{') => WRONG,
        _ if caller == ANOTHER_TEAM && route.path.contains('{') => "own",
        _ => "yes",
    }
}

fn page_of(routes: &[DeclaredRoute], seen: &[[&str; CALLERS.len()]]) -> String {
    let mut page = HEAD.to_owned();
    let _ = writeln!(page, "| route | needs | changes | audited as | {} |", CALLERS.join(" | "));
    let _ = writeln!(page, "|---|---|---|---|{}", "---|".repeat(CALLERS.len()));
    for (route, row) in routes.iter().zip(seen) {
        let changes = if route.rule.changes { "yes" } else { "" };
        let needs = shown(route.rule.needs);
        let action = route.rule.action.map(|action| format!("`{action}`")).unwrap_or_default();
        let answers = row.join(" | ");
        let _ = writeln!(page, "| `{} {}` | {needs} | {changes} | {action} | {answers} |", route.method, route.path);
    }
    page
}

fn shown(needs: Needs) -> &'static str {
    match needs {
        Needs::Nothing => "nothing",
        Needs::OwnToken => "own token",
        Needs::AgentKey => "any key",
        Needs::TeamView => "team view",
        Needs::TeamKey => "team key",
        Needs::AdminKey => "admin key",
        Needs::MetricsKey => "admin key, or open",
        Needs::Session => "session",
    }
}

const HEAD: &str = "\
# Routes and permissions

<!-- Written by `ISOPOD_WRITE_DOCS=1 cargo test -p isopod-server --test all routes`. Do not edit. -->

Every route declares the key that it needs and its name in the audit log, in the line that registers it. A route without this
declaration doesn't compile. A test calls every route as every kind of caller and compares the responses with this page.

What a route needs:

- **nothing**: anybody may call it.
- **own token**: a secret for this one resource, such as an upload link or a volume's token. API keys don't work.
- **any key**: a key of any scope. An agent's key reaches only what belongs to its agent.
- **team view**: a team, read-only or admin key.
- **team key**: a team or admin key.
- **admin key**: an admin key. `/metrics` is open to all with `serve --open-metrics`.
- **session**: the cookie of a browser that has signed in to the [dashboard](../dashboard.md). API keys don't work. The page calls the
  other routes of this table with the key that the user signed in with, so their rules apply, and they are audited.

Read-only keys are never accepted by a route that changes something. Requests to a route without an action aren't audited.

What a caller gets: **yes** means that the request reached its handler, **401** and **403** that it was refused, **404** that a
resource of another team doesn't exist for this caller, and **own** that the name in the path means a resource of the caller. All
resources in the paths belong to the team of the first five callers; those of the sandbox service belong to the agent.

";

/// A key of a team has no access above it.
#[tokio::test]
async fn a_team_key_cannot_rename_rotate_or_revoke_an_admin_key() {
    let server = Server::start().await;
    let admin = server.key_of(Scope::Admin).await;
    let keys = server.client.get("/api-keys").await.json;
    let admins = keys.as_array().unwrap().iter().find(|key| key["scope"] == "admin").unwrap();
    let path = format!("/api-keys/{}", admins["id"].as_str().unwrap());
    let attempts = [
        (Method::PATCH, path.clone(), json!({ "name": "stolen" })),
        (Method::POST, format!("{path}/rotate"), json!({})),
        (Method::DELETE, path.clone(), json!({})),
    ];
    for (method, path, body) in &attempts {
        let refused = server.client.call(method.clone(), path, &[], Some(body.clone())).await;
        assert_eq!((refused.status, &refused.json["error_code"]), (403, &json!("scope_forbids")), "{method} {path}");
    }
    let unchanged = admin.get("/api-keys").await.json;
    assert!(unchanged.as_array().unwrap().iter().any(|key| key["name"] == admins["name"] && key["scope"] == "admin"));
    for (method, path, body) in attempts {
        let done = admin.call(method.clone(), &path, &[], Some(body)).await;
        assert!(done.status < 300, "{method} {path}: {done:?}");
    }
}

#[tokio::test]
async fn metrics_want_an_admin_key_unless_they_are_open() {
    let server = Server::start().await;
    let admin = server.key_of(Scope::Admin).await;
    let stranger = async |server: &Server| server.client.raw(Method::GET, "/metrics", &[], "".into()).await.status;
    assert_eq!(stranger(&server).await, 401);
    assert_eq!(server.client.get("/metrics").await.status, 403);
    assert!(admin.get("/metrics").await.text.contains("isopod_"));
    // As Prometheus sends it.
    let bearer = format!("Bearer {}", admin.key);
    let scraped = admin.raw(Method::GET, "/metrics", &[("authorization", &bearer)], "".into()).await;
    assert_eq!(scraped.status, 200);
    let open = Server::start_with(|config| config.control.open_metrics = true).await;
    assert_eq!(stranger(&open).await, 200);
}
