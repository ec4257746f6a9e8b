//! Webhooks: where they may go, how they are signed, and that they are sent again.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use sha2::Digest as _;
use support::Server;
use support::outside::{serve_http, serve_tls};
use support::server::until;

const SECRET: &str = "a-secret-of-some-length";

fn body(url: &str) -> Value {
    let events = ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"];
    json!({ "name": "mine", "url": url, "events": events, "signatureSecret": SECRET })
}

#[derive(Default)]
struct Receiver {
    fail: AtomicU32,
    seen: Mutex<Vec<(HeaderMap, String)>>,
}

impl Receiver {
    async fn start(self: Arc<Self>) -> String {
        let service = hyper::service::service_fn(move |request| Arc::clone(&self).take(request));
        format!("http://{}/hook", serve_http(service).await)
    }

    /// Like [`Self::start`], over TLS with a self-signed certificate. Returns the certificate too.
    async fn start_tls(self: Arc<Self>) -> (String, Vec<u8>) {
        let service = hyper::service::service_fn(move |request| Arc::clone(&self).take(request));
        let (address, certificate) = serve_tls(service).await;
        (format!("https://{address}/hook"), certificate)
    }

    async fn take(self: Arc<Self>, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
        let (parts, body) = request.into_parts();
        let text = String::from_utf8(body.collect().await?.to_bytes().to_vec()).unwrap();
        let mut response = Response::new(Full::default());
        if self.fail.load(Ordering::Relaxed) > 0 {
            self.fail.fetch_sub(1, Ordering::Relaxed);
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        } else {
            self.seen.lock().unwrap().push((parts.headers, text));
        }
        Ok(response)
    }
}

#[tokio::test]
async fn webhooks_reach_the_internal_places_that_the_operator_allows_and_no_others() {
    let allowed = isopod_outbound::Policy::new(vec!["127.0.0.1:8099".parse().unwrap(), "10.0.0.0/8".parse().unwrap()]);
    let server = Server::start_with(move |config| config.control.outbound = allowed.clone()).await;
    for (url, status) in [
        ("http://127.0.0.1:8099/", 201),
        ("http://10.1.2.3/", 201),
        ("http://127.0.0.1:3000/", 400),
        ("http://192.168.1.1/", 400),
    ] {
        assert_eq!(server.client.post("/events/webhooks", body(url)).await.status, status, "{url}");
    }
}

#[tokio::test]
async fn webhooks_to_internal_addresses_are_refused() {
    let server = Server::start().await;
    for url in
        ["http://127.0.0.1:3000/", "http://localhost/", "http://[::1]/", "http://169.254.169.254/", "http://0x7f.1/"]
    {
        assert_eq!(server.client.post("/events/webhooks", body(url)).await.status, 400, "{url}");
    }
    // The error does not reveal where a name leads in the internal network.
    let named = server.client.post("/events/webhooks", body("http://localhost/")).await.text;
    assert!(named.contains("internal") && !named.contains("127.0.0.1") && !named.contains("::1"), "{named}");
    assert_eq!(server.client.post("/events/webhooks", body("https://127.0.0.1/")).await.status, 400);
    let mut short = body("http://127.0.0.1/");
    short["signatureSecret"] = json!("x");
    assert_eq!(server.client.post("/events/webhooks", short).await.status, 400);
    assert_eq!(server.client.get("/events/webhooks").await.json, json!([]));
}

#[tokio::test]
async fn events_are_delivered_signed_and_again_after_a_failure() {
    let server = Server::start_with(|config| config.control.allow_internal_webhooks = true).await;
    let receiver = Arc::new(Receiver::default());
    receiver.fail.store(1, Ordering::Relaxed);
    let url = Arc::clone(&receiver).start().await;
    let made = server.client.post("/events/webhooks", body(&url)).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert!(!made.text.contains(SECRET));
    let id = made.json["id"].as_str().unwrap();
    assert_eq!(server.other_team().await.get(&format!("/events/webhooks/{id}")).await.status, 404);

    let sandbox = server.create(json!({})).await;
    server.client.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await;
    server.client.delete(&format!("/sandboxes/{sandbox}")).await;
    until("both were delivered", || async { receiver.seen.lock().unwrap().len() == 2 }).await;
    let seen = receiver.seen.lock().unwrap().clone();
    for (headers, text) in &seen {
        let mut hash = sha2::Sha256::new();
        hash.update(SECRET);
        hash.update(text);
        let expected = base64::engine::general_purpose::STANDARD_NO_PAD.encode(hash.finalize());
        assert_eq!(headers["e2b-signature"], expected);
        assert_eq!(headers["e2b-webhook-id"], id);
        let event: Value = serde_json::from_str(text).unwrap();
        assert_eq!(event["sandboxId"], sandbox.as_str());
    }

    let path = format!("/events/webhooks/{id}");
    let off = server.client.call(Method::PATCH, &path, &[], Some(json!({ "enabled": false }))).await;
    assert_eq!((off.status, &off.json["enabled"]), (200, &json!(false)));
    assert_eq!(server.client.delete(&path).await.status, 200);
    assert_eq!(server.client.get(&path).await.status, 404);
}

/// A receiver that accepts everything and never responds. Returns how many deliveries wait for it.
async fn hanging() -> (String, Arc<AtomicU32>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let waiting = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&waiting);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            kept.push(stream);
        }
    });
    (url, waiting)
}

#[tokio::test]
async fn receivers_that_do_not_answer_hold_up_only_their_own_team() {
    let server = Server::start_with(|config| config.control.allow_internal_webhooks = true).await;
    let (url, waiting) = hanging().await;
    assert_eq!(server.client.post("/events/webhooks", body(&url)).await.status, 201);
    for _ in 0..100 {
        server.create(json!({})).await;
    }
    until("theirs hang", || async { waiting.load(Ordering::Relaxed) >= 4 }).await;
    let other = server.other_team().await;
    let receiver = Arc::new(Receiver::default());
    let url = Arc::clone(&receiver).start().await;
    assert_eq!(other.post("/events/webhooks", body(&url)).await.status, 201);
    for _ in 0..20 {
        assert_eq!(other.post("/v2/sandboxes", json!({ "templateID": "base" })).await.status, 201);
    }
    until("the other team's are all delivered", || async { receiver.seen.lock().unwrap().len() == 20 }).await;
    assert_eq!(waiting.load(Ordering::Relaxed), 4, "none of theirs has ended, and no more of them are tried");
    let ids: std::collections::BTreeSet<String> =
        receiver.seen.lock().unwrap().iter().map(|(headers, _)| format!("{:?}", headers["e2b-delivery-id"])).collect();
    assert_eq!(ids.len(), 20, "each once");
}

/// A delivery is checked again, because the webhook's address may have been allowed only when it was created.
#[tokio::test]
async fn a_webhook_that_may_no_longer_be_reached_is_refused_at_its_delivery() {
    let allowed = Arc::new(AtomicBool::new(true));
    let setting = Arc::clone(&allowed);
    let mut server =
        Server::start_with(move |config| config.control.allow_internal_webhooks = setting.load(Ordering::Relaxed))
            .await;
    let (url, connections) = hanging().await;
    assert_eq!(server.client.post("/events/webhooks", body(&url)).await.status, 201);
    allowed.store(false, Ordering::Relaxed);
    server.stop().await;
    let server = server.start_again().await;
    server.create(json!({})).await;
    let errors = "SELECT last_error FROM webhook_deliveries WHERE attempts > 0";
    until("it was tried", || async { !server.texts(errors).await.is_empty() }).await;
    let refused = server.texts(errors).await;
    assert!(refused.iter().all(|error| error.contains("internal address")), "{refused:?}");
    assert_eq!(connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn https_webhooks_are_sent_only_to_whom_is_certified() {
    let (known, stranger) = (Arc::new(Receiver::default()), Arc::new(Receiver::default()));
    let (url, authority) = Arc::clone(&known).start_tls().await;
    let (strange_url, _) = Arc::clone(&stranger).start_tls().await;
    let server = Server::start_with(move |config| {
        config.control.allow_internal_webhooks = true;
        config.control.webhook_authorities.clone_from(&authority);
    })
    .await;
    for url in [&strange_url, &url] {
        assert_eq!(server.client.post("/events/webhooks", body(url)).await.status, 201, "{url}");
    }
    server.create(json!({})).await;
    until("it was delivered", || async { known.seen.lock().unwrap().len() == 1 }).await;
    assert!(stranger.seen.lock().unwrap().is_empty());
}
