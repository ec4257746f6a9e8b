//! Traffic to sandboxes: how they are named, what is refused, and what happens to streams.

use crate::support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use isopod_wire::node::EndReason;
use serde_json::{Value, json};
use sha2::Digest as _;
use support::Server;
use support::guest::HEAD_ECHO;
use support::hostile::{ENDLESS_HEAD, ENDLESS_PROMISES, ENDLESS_TRAILERS, NO_HTTP};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const GUEST: u16 = 49983;

async fn with_token(server: &Server, fields: Value) -> (String, String) {
    let mut body = json!({ "templateID": "base" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let made = server.client.post("/v2/sandboxes", body).await;
    let text = |key: &str| made.json[key].as_str().unwrap_or_default().to_owned();
    (text("sandboxID"), text("envdAccessToken"))
}

#[tokio::test]
async fn what_is_not_there_is_refused_in_the_words_the_sdks_know() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let gone = server.client.inside("inobody", GUEST, "/health").await;
    assert_eq!(gone.status, 502);
    assert_eq!(gone.json, json!({ "sandboxId": "inobody", "message": "The sandbox was not found", "code": 502 }));
    let closed = server.client.inside(&id, 81, "/").await;
    let message = "The sandbox is running but port is not open";
    assert_eq!(closed.json, json!({ "sandboxId": id, "message": message, "port": 81, "code": 502 }));
    let half = server.client.raw(Method::GET, "/", &[("e2b-sandbox-id", &id)], Bytes::new()).await;
    assert_eq!(half.status, 400);
    let odd = [("e2b-sandbox-id", "../../x"), ("e2b-sandbox-port", "80")];
    assert_eq!(server.client.raw(Method::GET, "/", &odd, Bytes::new()).await.status, 400);
    for path in ["/init", "/%69nit", "//freeze", "/x/../upgrade"] {
        assert_eq!(server.client.inside(&id, GUEST, path).await.status, 404, "{path}");
    }
    let browser = [("host", "81-inobody.isopod.localhost"), ("user-agent", "Mozilla/5.0"), ("accept", "text/html,*/*")];
    let page = server.client.raw(Method::GET, "/", &browser, Bytes::new()).await;
    assert!(page.status == 502 && page.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    server.client.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(server.client.inside(&id, GUEST, "/health").await.status, 502);
}

/// The SDKs report a 502 as a probable timeout of the sandbox.
#[tokio::test]
async fn a_template_without_an_interpreter_says_so_at_once() {
    let server = Server::start().await;
    server.node.has_interpreter.store(false, Relaxed);
    let id = server.create(json!({})).await;
    for path in ["/execute", "/health"] {
        let answer = server.client.inside(&id, 49999, path).await;
        let message = answer.json["message"].as_str().unwrap();
        assert_eq!(answer.status, 404);
        assert!(message.contains("no code interpreter") && message.contains("code-interpreter-v1"), "{message}");
    }
}

#[tokio::test]
async fn a_sandbox_is_found_by_headers_host_and_path() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    assert_eq!(server.client.inside(&id, GUEST, "/x?y=1").await.json["target"], "Guest");
    assert_eq!(server.client.inside(&id, 49999, "/x").await.json["target"], "Interpreter");
    let by_headers = server.client.inside(&id, 8080, "/x?y=1").await;
    assert_eq!((&by_headers.json["target"], &by_headers.json["uri"]), (&json!("Port(8080)"), &json!("/x?y=1")));
    let seen = by_headers.json["headers"].as_object().unwrap();
    assert!(!seen.contains_key("e2b-sandbox-id") && seen["x-forwarded-for"] == "127.0.0.1");
    for domain in ["isopod.localhost", "isopod.localhost:3000", "localhost"] {
        let host = format!("8080-{id}.{domain}");
        let answer = server.client.raw(Method::GET, "/a", &[("host", &host)], Bytes::new()).await;
        assert_eq!(answer.json["headers"]["host"], host);
    }
    let path = format!("/sandbox/{id}/8080/cookie?q=1");
    let answer = server.client.raw(Method::GET, &path, &[("cookie", "session=1")], Bytes::new()).await;
    assert_eq!(answer.text, "cookie");
    assert!(!answer.headers.contains_key("set-cookie"));
    assert!(answer.headers["content-security-policy"].to_str().unwrap().starts_with("sandbox"));
    let path = format!("/sandbox/{id}/8080/a/b?q=1");
    let answer = server.client.raw(Method::GET, &path, &[("cookie", "session=1")], Bytes::new()).await;
    assert_eq!(answer.json["uri"], "/a/b?q=1");
    assert!(answer.json["headers"].get("cookie").is_none());
    let direct = format!("8080-{id}.localhost");
    let answer = server.client.raw(Method::GET, "/cookie", &[("host", &direct)], Bytes::new()).await;
    assert_eq!(answer.headers["set-cookie"], "a=b");
}

/// Every form of a credential for this server, on every way into a sandbox.
#[tokio::test]
async fn what_opens_this_server_stays_outside_in_every_form_and_a_services_own_passes() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let server = Server::start_with(move |config| {
        config.control.workspace = Some(isopod_files::workspace::Workspace::new(&path));
        config.control.team_tokens = Some(isopod_control::TeamTokens {
            key: isopod_control::TokenKey::Secret(isopod_wire::node::Secret("secret".to_owned())),
            issuer: None,
            audience: None,
        });
    })
    .await;
    let id = server.create(json!({})).await;
    let volume = server.client.post("/volumes", json!({ "name": "data" })).await.json;
    let (key, volume) = (server.client.key.clone(), volume["token"].as_str().unwrap().to_owned());
    let reader = server.key_of(isopod_store::Scope::ReadOnly).await.key;
    let person = signed(&json!({ "sub": "p", "exp": 4_000_000_000_i64 }), "secret");
    let strangers = signed(&json!({ "sub": "p", "exp": 4_000_000_000_i64 }), "another service");
    let ours = [
        ("x-api-key", key.clone()),
        ("X-API-KEY", reader.clone()),
        ("authorization", format!("Bearer {key}")),
        ("authorization", format!("bearer  {reader}")),
        ("authorization", key.clone()),
        ("x-api-key", format!("Bearer {key}")),
        ("authorization", format!("Bearer {volume}")),
        ("authorization", format!("Bearer {person}")),
        ("x-supabase-token", person.clone()),
        ("x-supabase-team", "team-1".to_owned()),
    ];
    let theirs = [
        ("x-api-key", "a-service's-own-key".to_owned()),
        ("authorization", "Bearer a-service's-own-token".to_owned()),
        ("authorization", format!("Bearer {strangers}")),
        ("authorization", "Basic dXNlcjo=".to_owned()),
        ("cookie-like", key.chars().rev().collect()),
    ];
    let (host, path) = (format!("8080-{id}.localhost"), format!("/sandbox/{id}/8080/x"));
    let routing = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let ways: [(&str, &[(&str, &str)]); 3] = [("/x", &routing), ("/x", &[("host", &host)]), (&path, &[])];
    for (path, way) in ways {
        for (name, value) in &ours {
            // Alone, and after one that passes.
            let own = (*name, "a-service's-own");
            for before in [None, Some(own)] {
                let mut headers = way.to_vec();
                headers.extend(before);
                headers.push((name, value));
                let answer = server.client.raw(Method::GET, path, &headers, Bytes::new()).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                assert!(!answer.text.contains(value.as_str()), "{name}: {value} got inside by {way:?}");
            }
            // After more values than are checked.
            let mut headers = way.to_vec();
            headers.extend([own; 8]);
            headers.push((name, value));
            let answer = server.client.raw(Method::GET, path, &headers, Bytes::new()).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert!(!answer.text.contains(value.as_str()), "{name}: {value} got inside behind eight by {way:?}");
        }
        for (name, value) in &theirs {
            let mut headers = way.to_vec();
            headers.push((name, value));
            let answer = server.client.raw(Method::GET, path, &headers, Bytes::new()).await;
            assert_eq!(answer.json["headers"][*name], json!(value), "by {way:?}");
        }
    }
}

#[tokio::test]
async fn a_key_under_the_name_of_a_team_token_stays_outside_where_team_tokens_are_off() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let key = server.client.key.clone();
    let way = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    for value in [key.clone(), format!("Bearer {key}")] {
        let headers = [&way[..], &[("x-supabase-token", value.as_str())]].concat();
        let answer = server.client.raw(Method::GET, "/x", &headers, Bytes::new()).await;
        assert!(answer.status == 200 && !answer.text.contains(&key), "{}", answer.text);
    }
    let own = [&way[..], &[("x-supabase-token", "a-service's-own")]].concat();
    let answer = server.client.raw(Method::GET, "/x", &own, Bytes::new()).await;
    assert_eq!(answer.json["headers"]["x-supabase-token"], "a-service's-own");
}

/// E2B's SDKs send the traffic token with these calls if they have one. Python 2.0 to 2.8 send the access token.
#[tokio::test]
async fn contexts_of_a_secured_sandbox_need_a_token_and_its_public_ports_do_not() {
    let server = Server::start().await;
    let made = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await.json;
    let text = |key: &str| made[key].as_str().unwrap().to_owned();
    let (id, access, traffic) = (text("sandboxID"), text("envdAccessToken"), text("trafficAccessToken"));
    assert_ne!(access, traffic);
    let ask = async |method: Method, port: &str, path: &str, shown: &[(&str, &str)]| {
        let headers = [&[("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", port)], shown].concat();
        server.client.raw(method, path, &headers, Bytes::new()).await.status
    };
    let calls = [
        (Method::GET, "/contexts"),
        (Method::POST, "/contexts"),
        (Method::DELETE, "/contexts/x"),
        (Method::POST, "/contexts/x/restart"),
        (Method::POST, "/contexts/x/fork"),
        (Method::GET, "//contexts/"),
        (Method::GET, "/%63ontexts"),
    ];
    for (method, path) in calls {
        for shown in [&[][..], &[("e2b-traffic-access-token", "wrong")], &[("x-access-token", &traffic)]] {
            assert_eq!(ask(method.clone(), "49999", path, shown).await, 403, "{method} {path} {shown:?}");
        }
        for shown in [("e2b-traffic-access-token", &traffic), ("x-access-token", &access)] {
            let shown = [(shown.0, shown.1.as_str())];
            assert_eq!(ask(method.clone(), "49999", path, &shown).await, 200, "{method} {path} {shown:?}");
        }
    }
    // The guest itself requires the token here.
    assert_eq!(ask(Method::POST, "49999", "/execute", &[]).await, 200);
    assert_eq!(ask(Method::GET, "49999", "/health", &[]).await, 204);
    assert_eq!(ask(Method::OPTIONS, "49999", "/contexts", &[]).await, 200);
    assert_eq!(ask(Method::GET, "8080", "/contexts", &[]).await, 200);
    // Connecting returns the same token again.
    let again = server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.json;
    assert_eq!(again["trafficAccessToken"], json!(traffic));
    // A sandbox that was created without security stays open, as with E2B.
    let open = server.client.post("/sandboxes", json!({ "templateID": "base" })).await.json;
    assert_eq!(open["trafficAccessToken"], Value::Null);
    assert_eq!(server.client.inside(open["sandboxID"].as_str().unwrap(), 49999, "/contexts").await.status, 200);
}

/// A sandbox may run anything behind a port.
#[tokio::test]
async fn a_port_that_answers_without_end_or_speaks_no_http_costs_its_client_only() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    for port in [ENDLESS_HEAD, NO_HTTP] {
        assert_eq!(server.client.inside(&id, port, "/").await.status, 502, "{port}");
    }
    let port = ENDLESS_TRAILERS.to_string();
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", port.as_str())];
    let response = server.client.open(Method::GET, "/", &headers, Bytes::new()).await;
    // It is chance whether its head came through before it was cut.
    assert!(response.status() == 502 || response.into_body().collect().await.is_err());
    // It never responds, and ends with its client.
    let (client, sandbox) = (server.client.clone(), id.clone());
    let waiting = tokio::spawn(async move { client.inside(&sandbox, ENDLESS_PROMISES, "/").await });
    assert_eq!(server.client.inside(&id, GUEST, "/health").await.status, 204);
    waiting.abort();
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
}

/// The guest needs them, but other services inside do not need the token.
#[tokio::test]
async fn the_guest_gets_its_user_and_token_and_other_ports_only_the_user() {
    let server = Server::start().await;
    let (id, token) = with_token(&server, json!({})).await;
    for (port, passes) in [("49983", true), ("49999", true), ("8080", false)] {
        let headers = [
            ("e2b-sandbox-id", id.as_str()),
            ("e2b-sandbox-port", port),
            ("authorization", "Basic cm9vdDo="),
            ("x-access-token", &token),
        ];
        let answer = server.client.raw(Method::GET, "/x", &headers, Bytes::new()).await;
        assert_eq!(answer.json["headers"]["authorization"], "Basic cm9vdDo=");
        assert_eq!(answer.json["headers"].get("x-access-token").is_some(), passes, "{port}");
    }
}

fn signed(claims: &Value, secret: &str) -> String {
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let head = encode(json!({ "alg": "HS256" }).to_string().as_bytes());
    let text = format!("{head}.{}", encode(claims.to_string().as_bytes()));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    format!("{text}.{}", encode(ring::hmac::sign(&key, text.as_bytes()).as_ref()))
}

#[tokio::test]
async fn private_ports_need_the_traffic_token_but_the_guest_does_not() {
    let server = Server::start().await;
    let body = json!({ "templateID": "base", "network": { "allowPublicTraffic": false } });
    let made = server.client.post("/v2/sandboxes", body).await;
    let id = made.json["sandboxID"].as_str().unwrap();
    let token = made.json["trafficAccessToken"].as_str().unwrap();
    let missing = server.client.inside(id, 8080, "/").await;
    let message = "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing";
    assert_eq!(missing.json, json!({ "sandboxId": id, "message": message, "code": 403 }));
    assert_eq!(server.client.inside(id, GUEST, "/x").await.status, 200);
    for (given, status) in [("wrong", 403), (token, 200)] {
        let headers = [("e2b-sandbox-id", id), ("e2b-sandbox-port", "8080"), ("e2b-traffic-access-token", given)];
        let answer = server.client.raw(Method::GET, "/", &headers, Bytes::new()).await;
        assert_eq!(answer.status, status);
        assert!(!answer.text.contains(token), "the token goes inside");
    }
    let insecure = json!({ "templateID": "base", "network": { "allowPublicTraffic": false } });
    assert_eq!(server.client.post("/sandboxes", insecure).await.status, 400);
}

#[tokio::test]
async fn a_masked_host_is_what_services_see() {
    let server = Server::start().await;
    let id = server.create(json!({ "network": { "maskRequestHost": "localhost:${PORT}" } })).await;
    assert_eq!(server.client.inside(&id, 8080, "/").await.json["headers"]["host"], "localhost:8080");
    assert_eq!(server.client.inside(&id, GUEST, "/").await.json["headers"]["host"], "localhost");
}

#[tokio::test]
async fn a_signed_file_url_finds_its_sandbox_and_no_other() {
    let server = Server::start().await;
    let (_other, _) = with_token(&server, json!({})).await;
    let (id, token) = with_token(&server, json!({})).await;
    let sign = |path: &str, operation: &str, token: &str| {
        let digest = sha2::Sha256::digest(format!("{path}:{operation}:user:{token}"));
        let signature = base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest);
        let signature = signature.replace('+', "%2B").replace('/', "%2F");
        format!("/files?path={}&username=user&signature=v1_{signature}", path.replace(' ', "%20"))
    };
    let get = |url: String| {
        let client = server.client.clone();
        async move { client.raw(Method::GET, &url, &[], Bytes::new()).await }
    };
    let found = get(sign("/a b", "read", &token)).await;
    assert_eq!((found.status, &found.json["target"]), (200, &json!("Guest")));
    // The content shares its origin with the API: it is downloaded rather than shown, and sets nothing for that origin.
    let cookie = [("cookie", "session=admin")];
    let page = server.client.raw(Method::GET, &sign("/evil.html", "read", &token), &cookie, Bytes::new()).await;
    assert_eq!((page.status, page.text.as_str()), (200, "<script>steal()</script>"));
    assert_eq!(page.headers["content-disposition"], "attachment; filename=evil.html");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    let policies = page.headers.get_all("content-security-policy").iter();
    assert!(policies.into_iter().any(|policy| {
        let policy = policy.to_str().unwrap();
        policy.starts_with("sandbox") && !policy.contains("allow-same-origin")
    }));
    for header in ["set-cookie", "clear-site-data", "service-worker-allowed", "alt-svc"] {
        assert!(!page.headers.contains_key(header), "{header}");
    }
    assert_eq!(page.headers["x-seen-cookie"], "None", "nor does the sandbox see what the browser keeps for the API");
    assert_eq!(get(sign("/a b", "write", &token)).await.status, 401, "signed for writing");
    assert_eq!(get(sign("/a b", "read", "guessed")).await.status, 401);
    assert_eq!(get(sign(&format!("/{}", "a".repeat(4095)), "read", &token)).await.status, 200);
    assert_eq!(get(sign(&format!("/{}", "a".repeat(4096)), "read", &token)).await.status, 401, "no path is as long");
    assert_eq!(get(sign("/a b", "read", &token).replace("path=/a%20b", "path=/etc")).await.status, 401);
    assert_eq!(get("/files?path=/a".to_owned()).await.status, 404, "without signature it is no route of ours");
    server.client.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(get(sign("/a b", "read", &token)).await.status, 401, "a dead sandbox's signature");
}

#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let body = Bytes::from(vec![7_u8; 20 << 20]);
    for port in ["8080", "49983"] {
        let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", port)];
        let response = server.client.open(Method::POST, "/echo", &headers, body.clone()).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), body);
    }
}

#[tokio::test]
async fn connections_to_the_guest_are_used_again() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    for _ in 0..20 {
        assert_eq!(server.client.inside(&id, GUEST, "/x").await.status, 200);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(server.node.dials.load(Relaxed) < 10, "{} dials", server.node.dials.load(Relaxed));
}

#[tokio::test]
async fn a_stream_begins_at_once_and_ends_with_an_error_when_the_sandbox_stops() {
    for verb in ["kill", "pause", "die"] {
        let server = Server::start().await;
        let id = server.create(json!({})).await;
        let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "49983")];
        let mut body = server.client.open(Method::POST, "/stream", &headers, Bytes::new()).await.into_body();
        let first = tokio::time::timeout(Duration::from_secs(2), body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "first\n");
        match verb {
            "kill" => drop(server.client.delete(&format!("/sandboxes/{id}")).await),
            "pause" => drop(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await),
            _ => server.node.die(&id, EndReason::GuestDied),
        }
        let next = tokio::time::timeout(Duration::from_secs(1), body.frame()).await;
        assert!(matches!(next, Ok(Some(Err(_)))), "{verb}: {next:?}");
    }
}

#[tokio::test]
async fn a_connect_stream_ends_in_its_own_words_when_the_sandbox_stops() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let whole = server.client.open(Method::POST, "/connect", &headers, Bytes::new()).await;
    let cut = server.client.open(Method::POST, "/cut", &headers, Bytes::new()).await;
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let body = whole.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&body[..7], b"\0\0\0\0\x02{}");
    let end: Value = serde_json::from_slice(&body[12..]).unwrap();
    assert_eq!((body[7], &end["error"]["code"]), (2, &json!("unavailable")));
    assert!(cut.into_body().collect().await.is_err(), "nothing can follow half a frame");
}

/// The SDKs check what happened only if the stream breaks, and recognize a kill by the edge's response.
#[tokio::test]
async fn a_connect_stream_breaks_when_the_sandbox_is_gone_and_the_next_request_says_so() {
    let server = Server::start().await;
    for lost in [false, true] {
        let id = server.create(json!({})).await;
        let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
        let stream = server.client.open(Method::POST, "/connect", &headers, Bytes::new()).await;
        match lost {
            true => server.node.die(&id, EndReason::GuestDied),
            false => assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204),
        }
        assert!(stream.into_body().collect().await.is_err(), "{lost}");
        let health = server.client.inside(&id, GUEST, "/health").await;
        assert_eq!((health.status, &health.json["message"]), (502, &json!("The sandbox was not found")), "{lost}");
    }
}

#[tokio::test]
async fn over_http2_a_body_that_is_cut_says_that_it_was_cancelled() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut bodies = Vec::new();
    for path in ["/stream", "/connect"] {
        let request = Request::get(format!("http://localhost{path}"))
            .header("e2b-sandbox-id", &id)
            .header("e2b-sandbox-port", "8080")
            .body(http_body_util::Empty::<Bytes>::new())
            .unwrap();
        bodies.push(sender.send_request(request).await.unwrap().into_body());
    }
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let ended = bodies.pop().unwrap().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&ended).contains("unavailable"));
    let error = bodies.pop().unwrap().collect().await.unwrap_err();
    let reason =
        std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<h2::Error>()).unwrap().reason();
    assert_eq!(reason, Some(h2::Reason::CANCEL), "{error:?}");
}

/// Clients take a cancelled stream for their own doing, or for a complete one.
#[tokio::test]
async fn over_http2_a_stream_of_a_killed_sandbox_ends_with_an_error() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://localhost/connect")
        .header("e2b-sandbox-id", &id)
        .header("e2b-sandbox-port", "8080")
        .body(http_body_util::Empty::<Bytes>::new())
        .unwrap();
    let body = sender.send_request(request).await.unwrap().into_body();
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let error = body.collect().await.unwrap_err();
    let reason =
        std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<h2::Error>()).unwrap().reason();
    assert_eq!(reason, Some(h2::Reason::INTERNAL_ERROR), "{error:?}");
}

#[tokio::test]
async fn a_kept_connection_that_closes_without_an_answer_costs_only_another_try() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let ask = |method: Method, body: &'static str| {
        let (client, id) = (server.client.clone(), id.clone());
        async move {
            let port = GUEST.to_string();
            let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", &port), ("x-hang-up", "1")];
            client.raw(method, "/x", &headers, Bytes::from_static(body.as_bytes())).await.status
        }
    };
    assert_eq!(ask(Method::GET, "").await, 200, "a fresh connection");
    for method in [Method::GET, Method::DELETE] {
        server.client.inside(&id, GUEST, "/").await;
        assert_eq!(ask(method, "").await, 200, "sent again");
    }
    // A connection is kept a moment after its response was read, so the next request may find none and be answered.
    for (method, body, why) in [(Method::POST, "", "what may not be done twice"), (Method::PUT, "body", "what is gone")]
    {
        support::server::until(&format!("{why} is not sent twice"), || async {
            server.client.inside(&id, GUEST, "/").await;
            ask(method.clone(), body).await == 502
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_inside() {
    let server = Server::start_with(|config| config.control.connections.per_sandbox = 1).await;
    let id = server.create(json!({})).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let open = server.client.open(Method::GET, "/stream", &headers, Bytes::new()).await;
    let refused = server.client.inside(&id, 8080, "/x").await;
    assert_eq!(refused.status, 429, "{refused:?}");
    drop(open);
    support::server::until("the place is free", || async { server.client.inside(&id, 8080, "/x").await.status == 200 })
        .await;
}

#[tokio::test]
async fn websockets_are_tunnelled_until_the_sandbox_stops() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = Request::get("/ws")
        .header("host", format!("8080-{id}.localhost"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let mut response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 101);
    let mut tunnel = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut buffer = [0; 5];
    for _ in 0..3 {
        tunnel.write_all(b"hello").await.unwrap();
        tunnel.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"hello");
    }
    server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
    let ended = tokio::time::timeout(Duration::from_secs(1), tunnel.read(&mut buffer)).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

#[tokio::test]
async fn a_tunnel_without_end_whose_client_does_not_read_is_not_kept_in_memory() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("host: 8080-{id}.localhost\r\nconnection: upgrade\r\nupgrade: websocket");
    stream.write_all(format!("GET /ws-flood HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    let printed = &server.node.printed;
    support::server::until("nothing is taken any more", || async { printed.is_flood_stuck.load(Relaxed) }).await;
    // Two buffers of 64 KiB are ours. The rest waits in the kernel's sockets, which have limits of their own.
    let taken = printed.flooded.load(Relaxed);
    assert!(taken < 32 << 20, "{taken} bytes");
    assert_eq!(server.client.inside(&id, GUEST, "/health").await.status, 204, "others are served");
    drop(stream);
    support::server::until("its connection has ended", || async { printed.connections.load(Relaxed) <= 1 }).await;
}

#[tokio::test]
async fn pages_of_other_sites_cannot_use_the_api() {
    let server =
        Server::start_with(|config| config.control.allowed_origins = vec!["https://app.example".to_owned()]).await;
    let key = server.client.key.clone();
    let ask = |method: Method, headers: Vec<(&'static str, &'static str)>| {
        let (client, key) = (server.client.clone(), key.clone());
        async move {
            let mut headers = headers;
            headers.push(("x-api-key", key.leak()));
            client.raw(method, "/v2/sandboxes", &headers, Bytes::new()).await
        }
    };
    for origin in ["https://evil.example", "http://3000-iabc.isopod.localhost", "null"] {
        assert_eq!(ask(Method::GET, vec![("origin", origin)]).await.status, 403, "{origin}");
    }
    let rebound = vec![("host", "evil.example"), ("sec-fetch-site", "same-origin")];
    assert_eq!(ask(Method::GET, rebound).await.status, 403);
    assert_eq!(ask(Method::GET, vec![("host", "isopod.lan")]).await.status, 200, "a program may use any name");
    assert_eq!(ask(Method::GET, vec![("origin", "http://localhost:8080")]).await.status, 200);
    let allowed = ask(Method::GET, vec![("origin", "https://app.example")]).await;
    assert_eq!(allowed.headers["access-control-allow-origin"], "https://app.example");
    let preflight = ask(Method::OPTIONS, vec![("origin", "https://app.example")]).await;
    assert_eq!(preflight.status, 204);
}

#[tokio::test]
async fn slow_heads_are_cut_and_idle_connections_are_kept() {
    let server = Server::start_with(|config| {
        config.control.connections.head_timeout = Duration::from_millis(200);
        config.control.connections.idle_timeout = Duration::from_secs(5);
    })
    .await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /health HTTP/1.1\r\nhost: lo").await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut text = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(2), slow.read_to_end(&mut text)).await;
    assert!(ended.is_ok(), "a slow head holds its connection");
    for _ in 0..2 {
        idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert!(read_answer(&mut idle).await.starts_with("HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let mut huge = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(400 << 10));
    let _ = huge.write_all(head.as_bytes()).await;
    let mut answer = vec![0; 12];
    let read = huge.read_exact(&mut answer).await;
    assert!(read.is_err() || answer.starts_with(b"HTTP/1.1 431"), "{:?}", String::from_utf8_lossy(&answer));
}

/// The response may arrive before the whole body was sent. The connection must stay open, because a client reuses it as
/// soon as it has the response, and would otherwise lose its next request.
#[tokio::test]
async fn a_refusal_before_the_body_came_does_not_cost_the_connection() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let gone = "e2b-sandbox-id: igone00000000000000000\r\ne2b-sandbox-port: 49983\r\n";
    for (head, answer) in [
        (format!("POST /process.Process/Start HTTP/1.1\r\nhost: localhost\r\n{gone}content-length: 4\r\n\r\n"), 502),
        ("POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n".to_owned(), 401),
    ] {
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = read_answer(&mut stream).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {answer}")), "{text}");
        assert!(!text.to_ascii_lowercase().contains("connection: close"), "{text}");
        stream.write_all(b"late").await.unwrap();
    }
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 200"));
}

/// One response with its body, which must have a length.
async fn read_answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.trim().parse().unwrap()) {
                return text;
            }
        }
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the connection closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
}

#[tokio::test]
async fn a_stopping_server_leaves_its_sandboxes_alone() {
    let mut server = Server::start().await;
    let id = server.create(json!({ "timeout": 1 })).await;
    server.stop().await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(server.node.state_of(&id).is_some());
    assert!(TcpStream::connect(server.address).await.is_err());
    let server = server.start_again().await;
    support::server::until("its time is over", || async { server.node.count() == 0 }).await;
}

/// A preview that is opened too early waits, and pages may be framed.
#[tokio::test]
async fn a_page_for_people_waits_until_the_port_opens() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let host = format!("3000-{id}.isopod.localhost");
    let browser = [("host", host.as_str()), ("user-agent", "Mozilla/5.0"), ("accept", "text/html,*/*")];
    let early = server.client.raw(Method::GET, "/", &browser, Bytes::new()).await;
    assert_eq!(early.status, 502);
    assert!(early.text.contains("port is not open") && early.text.contains("http-equiv=refresh"), "{}", early.text);
    let policy = early.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("sandbox"), "{policy}");
    let script = server.client.inside(&id, 3000, "/").await;
    assert_eq!(script.json["message"], "The sandbox is running but port is not open");
    server.node.open_ports.lock().unwrap().insert(3000);
    let ready = server.client.raw(Method::GET, "/", &browser, Bytes::new()).await;
    assert_eq!(ready.status, 200);
    for answer in [early, ready] {
        assert!(!answer.headers.contains_key("x-frame-options"));
    }
    let gone = [("host", "3000-inobody.isopod.localhost"), ("user-agent", "Mozilla/5.0"), ("accept", "text/html")];
    assert!(!server.client.raw(Method::GET, "/", &gone, Bytes::new()).await.text.contains("refresh"));
}

/// A proxy in front could parse such a request differently.
#[tokio::test]
async fn requests_that_can_be_read_in_two_ways_are_refused_for_the_api_and_for_sandboxes() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let ask = async |text: String| {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let routing = format!("e2b-sandbox-id: {id}\r\ne2b-sandbox-port: 8080\r\n");
    for to in ["", routing.as_str()] {
        let smuggled = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let lengths =
            ["content-length: 5\r\ntransfer-encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5"];
        for lengths in lengths {
            let head = format!("POST /x HTTP/1.1\r\nhost: localhost\r\n{to}{lengths}\r\n\r\n");
            let answer = ask(format!("{head}0\r\n\r\n{smuggled}")).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "the rest was taken for another request: {answer}");
        }
        for hosts in ["host: localhost\r\nhost: localhost", "host: localhost\r\nHost: evil.example"] {
            let answer = ask(format!("GET /health HTTP/1.1\r\n{hosts}\r\n{to}connection: close\r\n\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{hosts}: {answer}");
        }
        let absolute =
            format!("GET http://a.example/health HTTP/1.1\r\nhost: b.example\r\n{to}connection: close\r\n\r\n");
        assert!(ask(absolute).await.starts_with("HTTP/1.1 400 "));
        let fine = format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{to}connection: close\r\n\r\n");
        assert!(ask(fine).await.starts_with("HTTP/1.1 20"));
    }
}

#[tokio::test]
async fn header_names_arrive_as_they_were_written_both_ways() {
    let server = Server::start().await;
    server.node.open_ports.lock().unwrap().insert(HEAD_ECHO);
    let id = server.create(json!({})).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {HEAD_ECHO}\r\n\
         x-lower: 1\r\nX-UPPER: 2\r\nSec-WebSocket-Thing: 3\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, inside) = answer.split_once("\r\n\r\n").unwrap();
    for line in ["Host: localhost", "x-lower: 1", "X-UPPER: 2", "Sec-WebSocket-Thing: 3", "X-Forwarded-For: 127.0.0.1"]
    {
        assert!(inside.lines().any(|seen| seen == line), "{line} is not in\n{inside}");
    }
    for line in ["X-oDD-Name: 1", "set-cookie: a", "Connection: close"] {
        assert!(head.lines().any(|seen| seen == line), "{line} is not in\n{head}");
    }
    assert!(head.contains("\r\nX-Request-Id: ") && head.contains("\r\ncontent-LENGTH: "), "{head}");
}

#[tokio::test]
async fn a_server_of_several_domains_answers_with_the_one_that_it_was_asked_by() {
    let server = Server::start_with(|config| config.control.other_domains = vec!["e2b.app".to_owned()]).await;
    let ask = |method: Method, path: String, host: &'static str, body: &'static str| {
        let headers = [("x-api-key", support::server::KEY), ("host", host), ("content-type", "application/json")];
        let client = &server.client;
        async move { client.raw(method, &path, &headers, Bytes::from_static(body.as_bytes())).await.json }
    };
    let made = ask(Method::POST, "/sandboxes".into(), "api.e2b.app", r#"{"templateID":"base"}"#).await;
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    assert_eq!(made["domain"], "e2b.app");
    for (host, domain) in [("api.e2b.app", "e2b.app"), ("127.0.0.1:3000", "isopod.localhost")] {
        let detail = ask(Method::GET, format!("/sandboxes/{id}"), host, "").await;
        assert_eq!(detail["domain"], domain);
        for version in ["/v2", ""] {
            let path = format!("{version}/sandboxes/{id}/connect");
            let connected = ask(Method::POST, path, host, r#"{"timeout":60}"#).await;
            assert_eq!(connected["domain"], domain, "{version}");
        }
    }
    for (domain, message) in [
        ("e2b.app", "The sandbox is running but port is not open"),
        ("isopod.localhost", "The sandbox is running but port is not open"),
        ("e2b.dev", "This server does not serve that domain; its sandboxes have names below isopod.localhost"),
    ] {
        let host = format!("81-{id}.{domain}");
        let answer = server.client.raw(Method::GET, "/", &[("host", &host)], Bytes::new()).await;
        assert_eq!(answer.json["message"], message, "{domain}");
    }
    // A port forwarder may give the server such a name.
    let forwarded = [("host", "3000-someone.forwarded.example")];
    assert_eq!(server.client.raw(Method::GET, "/health", &forwarded, Bytes::new()).await.status, 200);
}

#[tokio::test]
async fn pages_of_other_domains_are_not_the_servers_own() {
    let server = Server::start_with(|config| config.control.other_domains = vec!["e2b.app".to_owned()]).await;
    let status = |host: &'static str, origin: &'static str| {
        let headers = [("x-api-key", support::server::KEY), ("host", host), ("origin", origin)];
        let client = &server.client;
        async move { client.raw(Method::GET, "/teams", &headers, Bytes::new()).await.status }
    };
    assert_eq!(status("api.e2b.app", "http://localhost:5173").await, 200);
    assert_eq!(status("api.e2b.dev", "http://localhost:5173").await, 403);
    assert_eq!(status("127.0.0.1:3000", "https://e2b.app").await, 403);
}
