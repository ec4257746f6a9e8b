//! The dashboard's frame: signing in, cookies, origins, tokens, headers, and what keys of small scopes see.

use http::Method;
use isopod_dashboard::{DashboardConfig, SealKey};
use isopod_store::Scope;
use serde_json::json;

use crate::support;
use support::{Browser, Server};

const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}\u{202e}";

async fn start() -> Server {
    Server::start_with(|config| {
        config.dashboard = DashboardConfig { enabled: true, key: SealKey::of(&[7; 32]) };
    })
    .await
}

#[tokio::test]
async fn without_a_session_there_is_only_the_form_to_sign_in() {
    let server = start().await;
    let mut browser = Browser::new(&server.client);
    for path in ["/dashboard", "/dashboard/sandboxes", "/dashboard/live/sandboxes"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.text.contains("name=\"key\""), "{answer:?}");
    }
    let answer = browser.send(Method::GET, "/dashboard/live/sandboxes", "", &[("accept", "text/event-stream")]).await;
    assert_eq!((answer.status, answer.json["code"].as_u64()), (401, Some(401)), "scripts get JSON");
    // An API key in a header is no session.
    let answer = server.client.get("/dashboard/sandboxes").await;
    assert_eq!(answer.status, 401);
}

#[tokio::test]
async fn a_key_signs_in_until_the_user_signs_out() {
    let server = start().await;
    let mut browser = Browser::new(&server.client);
    let answer = browser.sign_in(&server.client.key).await;
    assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (303, "/dashboard"));
    let cookie = answer.headers["set-cookie"].to_str().unwrap().to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/dashboard", "Max-Age="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains(&server.client.key), "the key is encrypted");

    let mut browser = Browser::signed_in(&server.client).await;
    let kept = browser.cookie();
    assert_eq!(browser.submit("/dashboard/sign-out", "").await.status, 303);
    assert_eq!(browser.cookie(), "");
    let copied = browser.send(Method::GET, "/dashboard", "", &[("cookie", &kept)]).await;
    assert_eq!(copied.status, 401, "a copy of the cookie is worth nothing");
}

#[tokio::test]
async fn a_session_survives_a_restart_of_the_server_and_ends_with_its_key() {
    let mut server = start().await;
    let scoped = server.key_of(Scope::Team).await;
    let browser = Browser::signed_in(&scoped).await;
    server.stop().await;
    let server = server.start_again().await;
    let cookie = browser.cookie();
    // The port is part of the cookie's name, because all servers of a machine share one set of cookies.
    let (name, value) = cookie.split_once('=').unwrap();
    let renamed = format!("{}-{}={value}", name.rsplit_once('-').unwrap().0, server.address.port());
    let mut browser = Browser::new(&server.client);
    let headers = [("cookie", renamed.as_str())];
    assert_eq!(browser.send(Method::GET, "/dashboard/sandboxes", "", &headers).await.status, 200);

    let keys = server.client.get("/api-keys").await;
    let id = keys.json.as_array().unwrap().iter().find(|key| key["name"] == "scoped").unwrap()["id"].clone();
    assert_eq!(server.client.delete(&format!("/api-keys/{}", id.as_str().unwrap())).await.status, 204);
    let answer = browser.send(Method::GET, "/dashboard/sandboxes", "", &headers).await;
    assert_eq!(answer.status, 401);
    assert!(answer.text.contains("name=\"key\""));
}

#[tokio::test]
async fn wrong_keys_are_refused_and_limited() {
    let server = start().await;
    let mut browser = Browser::new(&server.client);
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(browser.sign_in("e2b_ffffffffffffffffffffffffffffffffffffffff").await.status);
    }
    assert_eq!(statuses, [vec![403; 10], vec![429; 2]].concat());
    assert_eq!(browser.sign_in(&server.client.key).await.status, 429, "also for the right key");
}

#[tokio::test]
async fn signing_in_with_the_right_key_is_not_limited() {
    let server = start().await;
    let mut browser = Browser::new(&server.client);
    for _ in 0..15 {
        assert_eq!(browser.sign_in(&server.client.key).await.status, 303);
    }
}

#[tokio::test]
async fn a_change_needs_the_token_of_its_session() {
    let server = start().await;
    let mut browser = Browser::signed_in(&server.client).await;
    let other = Browser::signed_in(&server.client).await.csrf;
    for body in [String::new(), "csrf=".to_owned(), format!("csrf={other}"), format!("x={}", browser.csrf)] {
        let answer = browser.send(Method::POST, "/dashboard/sign-out", &body, &[]).await;
        assert_eq!(answer.status, 403, "{body}");
    }
    let wrong = [("x-csrf-token", "wrong")];
    let body = format!("csrf={}", browser.csrf);
    assert_eq!(browser.send(Method::POST, "/dashboard/sign-out", &body, &wrong).await.status, 403);
    let text = [("content-type", "text/plain")];
    assert_eq!(browser.send(Method::POST, "/dashboard/sign-out", &body, &text).await.status, 403);
    assert_eq!(browser.get("/dashboard").await.status, 200, "the session is still there");
    assert_eq!(browser.send(Method::POST, "/dashboard/sign-out", &body, &[]).await.status, 303);
}

#[tokio::test]
async fn pages_of_other_origins_can_neither_change_nor_read() {
    let server = start().await;
    let mut browser = Browser::signed_in(&server.client).await;
    let body = format!("csrf={}", browser.csrf);
    let port = server.address.port();
    let sandbox = format!("http://8000-iabc.isopod.localhost:{port}");
    let neighbour = "http://127.0.0.1:1".to_owned();
    for origin in [&sandbox, &neighbour, &"null".to_owned(), &"https://evil.example".to_owned()] {
        for site in ["same-site", "cross-site", "same-origin", ""] {
            let headers = [("origin", origin.as_str()), ("sec-fetch-site", site)];
            for (method, path) in [
                (Method::POST, "/dashboard/sign-out"),
                (Method::POST, "/dashboard/sign-in"),
                (Method::GET, "/dashboard/sandboxes"),
                (Method::GET, "/dashboard/live/sandboxes"),
            ] {
                let answer = browser.send(method.clone(), path, &body, &headers).await;
                assert_eq!(answer.status, 403, "{method} {path} {headers:?}");
                assert!(!answer.headers.contains_key("access-control-allow-origin"));
            }
        }
    }
    // Without an origin, as images, frames, scripts and streams of events are loaded.
    for (site, destination) in [("same-site", "iframe"), ("cross-site", "image"), ("same-site", "empty")] {
        let headers = [("sec-fetch-site", site), ("sec-fetch-dest", destination), ("sec-fetch-mode", "no-cors")];
        assert_eq!(browser.send(Method::GET, "/dashboard/sandboxes", "", &headers).await.status, 403, "{headers:?}");
    }
    assert_eq!(
        browser
            .send(Method::POST, "/dashboard/sign-out", &body, &[("origin", ""), ("sec-fetch-site", "")])
            .await
            .status,
        403
    );
    assert_eq!(browser.get("/dashboard").await.status, 200, "the session is still there");
}

#[tokio::test]
async fn every_answer_has_the_headers_that_confine_it() {
    let server = start().await;
    let mut browser = Browser::signed_in(&server.client).await;
    let paths = ["/dashboard", "/dashboard/sandboxes", "/dashboard/sign-in", "/dashboard/sandboxes?state=nonsense"];
    for path in paths {
        let answer = browser.get(path).await;
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default();
        let policy = header("content-security-policy");
        for part in
            ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
        {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("cache-control"), "no-store", "{path}");
        assert_eq!(header("referrer-policy"), "same-origin", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        assert!(!answer.text.contains(" style=") && !answer.text.contains(" onclick="), "{path}");
        assert!(!answer.text.contains("<script>"), "{path}");
    }
}

#[tokio::test]
async fn what_programs_say_is_text() {
    let server = start().await;
    server.create(json!({ "metadata": { "name": HOSTILE, HOSTILE: "x" } })).await;
    let mut browser = Browser::signed_in(&server.client).await;
    let encoded = "%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27";
    for path in [
        "/dashboard/sandboxes".to_owned(),
        format!("/dashboard/sandboxes?q={encoded}"),
        format!("/dashboard/sandboxes?state={encoded}"),
        format!("/dashboard/sign-in?next={encoded}"),
    ] {
        let page = browser.get(&path).await.text;
        assert!(!page.contains("<script>") && !page.contains("<img"), "{path}: {page}");
    }
    let page = browser.get("/dashboard/sandboxes").await.text;
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
}

#[tokio::test]
async fn scopes_apply() {
    let server = start().await;
    let mut team = Browser::signed_in(&server.client).await;
    assert_eq!(team.get("/dashboard/sandboxes").await.status, 200);
    let mut reader = Browser::signed_in(&server.key_of(Scope::ReadOnly).await).await;
    let answer = reader.get("/dashboard/sandboxes").await;
    assert_eq!(answer.status, 403);
    assert!(answer.text.contains("requires a key for the whole team"), "{answer:?}");

    let id = server.create(json!({})).await;
    let mut others = Browser::signed_in(&server.other_team().await).await;
    assert!(!others.get("/dashboard/sandboxes").await.text.contains(&id));
    assert!(team.get("/dashboard/sandboxes").await.text.contains(&id));
}

#[tokio::test]
async fn the_dashboard_is_only_on_the_servers_own_names() {
    let server = start().await;
    let id = server.create(json!({})).await;
    let mut browser = Browser::signed_in(&server.client).await;
    let host = format!("8000-{id}.isopod.localhost");
    let answer = browser.send(Method::GET, "/dashboard", "", &[("host", &host)]).await;
    assert!(!answer.text.contains("Isopod</span>"), "{answer:?}");
    let answer = browser.send(Method::GET, "/dashboard", "", &[("host", "evil.example")]).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn browsers_find_it_and_programs_do_not() {
    let server = start().await;
    let mut browser = Browser::new(&server.client);
    let answer = browser.get("/").await;
    assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (303, "/dashboard"));
    for (method, status) in [(Method::GET, 404), (Method::POST, 404), (Method::DELETE, 404)] {
        let answer = server.client.call(method, "/", &[], None).await;
        assert_eq!((answer.status, answer.json["message"].as_str()), (status, Some("no such route")));
    }
}

#[tokio::test]
async fn without_a_dashboard_nothing_of_it_is_there() {
    let server = Server::start_with(|config| config.dashboard.enabled = false).await;
    let mut browser = Browser::new(&server.client);
    for path in ["/", "/dashboard", "/dashboard/sign-in", "/dashboard/sandboxes"] {
        let answer = browser.get(path).await;
        assert_eq!((answer.status, answer.json["message"].as_str()), (404, Some("no such route")), "{path}");
    }
}

#[tokio::test]
async fn assets_are_kept_by_browsers_until_they_change() {
    let server = start().await;
    let mut browser = Browser::new(&server.client);
    let page = browser.get("/dashboard/sign-in").await.text;
    let path = support::between(&page, "<link rel=\"stylesheet\" href=\"", "\"").to_owned();
    let packed = server.client.open(Method::GET, &path, &[("accept-encoding", "gzip, br")], bytes::Bytes::new()).await;
    assert_eq!((packed.status().as_u16(), packed.headers()["content-encoding"].to_str().unwrap()), (200, "gzip"));
    let plain = browser.get(&path).await;
    assert!(plain.text.contains("--accent") && !plain.headers.contains_key("content-encoding"));
    assert!(plain.headers["cache-control"].to_str().unwrap().contains("immutable"));
    let tag = plain.headers["etag"].to_str().unwrap();
    assert_eq!(browser.send(Method::GET, &path, "", &[("if-none-match", tag)]).await.status, 304);
    let old = path.replace(path.split('/').nth(3).unwrap(), "0000000000000000");
    assert_eq!(browser.get(&old).await.status, 404);
}

#[tokio::test]
async fn a_thousand_sandboxes_are_listed_in_pages_and_searched() {
    let server = start().await;
    for number in 0..1000 {
        server.create(json!({ "metadata": { "number": format!("{number:04}") } })).await;
    }
    let mut browser = Browser::signed_in(&server.client).await;
    let (mut path, mut rows, mut pages) = ("/dashboard/sandboxes".to_owned(), 0, 0);
    loop {
        let page = browser.get(&path).await.text;
        assert!(page.contains("1000 running"), "{page}");
        rows += page.matches("<tr>").count() - 1;
        pages += 1;
        let Some((_, rest)) = page.split_once("&amp;after=") else { break };
        path = format!("/dashboard/sandboxes?state=&after={}", rest.split('"').next().unwrap());
    }
    assert_eq!((rows, pages), (1000, 10));
    let found = browser.get("/dashboard/sandboxes?q=NUMBER%3D0999").await.text;
    assert_eq!(found.matches("<tr>").count(), 2, "the head and the sandbox");
}

#[tokio::test]
async fn what_a_page_does_is_audited_and_limited_like_any_call() {
    let server = start().await;
    let id = server.create(json!({})).await;
    let mut browser = Browser::signed_in(&server.client).await;
    let path = format!("/dashboard/sandboxes/{id}");
    assert_eq!(browser.get(&path).await.status, 200);
    let answer = browser.submit(&format!("{path}/extend"), "seconds=900").await;
    assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (303, path.as_str()));
    assert!(browser.get(&path).await.text.contains("Its end is moved."));
    assert!(!browser.get(&path).await.text.contains("Its end is moved."), "it is said once");
    let mut others = Browser::signed_in(&server.other_team().await).await;
    for action in ["extend", "pause", "kill"] {
        assert_eq!(others.submit(&format!("{path}/{action}"), "seconds=900").await.status, 404, "{action}");
    }
    assert_eq!(others.get(&path).await.status, 404);
    assert_eq!(browser.submit(&format!("{path}/kill"), "").await.status, 303);
    assert_eq!(browser.get(&path).await.status, 404);
    let audit = server.key_of(Scope::Admin).await.get("/api/v1/audit").await.text;
    for action in ["sandbox.set_timeout", "sandbox.destroy"] {
        assert!(audit.contains(action), "{action}: {audit}");
    }
}

#[tokio::test]
async fn only_named_methods_of_the_guest_are_called() {
    let server = start().await;
    let id = server.create(json!({})).await;
    let mut browser = Browser::signed_in(&server.client).await;
    let path = format!("/dashboard/sandboxes/{id}/rpc");
    let token = browser.csrf.clone();
    let headers = [("x-csrf-token", token.as_str()), ("content-type", "application/json")];
    for method in ["StreamInput", "..%2Finit", "init"] {
        let answer = browser.send(Method::POST, &format!("{path}/{method}"), "{}", &headers).await;
        assert_eq!(answer.status, 404, "{method}");
    }
    let without = [("content-type", "application/json")];
    assert_eq!(browser.send(Method::POST, &format!("{path}/Start"), "{}", &without).await.status, 403);
}

#[tokio::test]
async fn an_admin_sees_the_server_and_others_do_not() {
    let server = start().await;
    let mut team = Browser::signed_in(&server.client).await;
    assert!(team.get("/dashboard").await.text.contains("Latest events"));
    assert_eq!(team.get("/dashboard/figures").await.text, "null");
    let mut admin = Browser::signed_in(&server.key_of(Scope::Admin).await).await;
    let page = admin.get("/dashboard").await;
    assert!(page.text.contains("Creates per second") && page.text.contains("Memory"), "{page:?}");
    let figures = admin.get("/dashboard/figures").await;
    assert_eq!(figures.json["creates"].as_f64(), Some(0.0), "{figures:?}");
}
