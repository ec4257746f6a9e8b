//! Webhooks: where they may go, how they are signed, and that they are sent again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::Digest as _;
use support::Server;
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
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let receiver = Arc::clone(&self);
                let service = hyper::service::service_fn(move |request| Arc::clone(&receiver).take(request));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        url
    }

    /// Like [`Self::start`], over TLS with a certificate that certifies itself. Gives the certificate too.
    async fn start_tls(self: Arc<Self>) -> (String, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], made.signing_key.serialize_der().try_into().unwrap())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let receiver = Arc::clone(&self);
                let service = hyper::service::service_fn(move |request| Arc::clone(&receiver).take(request));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        (url, made.cert.pem().into_bytes())
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
async fn webhooks_to_internal_addresses_are_refused() {
    let server = Server::start().await;
    for url in
        ["http://127.0.0.1:3000/", "http://localhost/", "http://[::1]/", "http://169.254.169.254/", "http://0x7f.1/"]
    {
        assert_eq!(server.client.post("/events/webhooks", body(url)).await.status, 400, "{url}");
    }
    assert_eq!(server.client.post("/events/webhooks", body("https://127.0.0.1/")).await.status, 400);
    let mut short = body("http://127.0.0.1/");
    short["signatureSecret"] = json!("x");
    assert_eq!(server.client.post("/events/webhooks", short).await.status, 400);
    assert_eq!(server.client.get("/events/webhooks").await.json, json!([]));
}

#[tokio::test]
async fn events_are_delivered_signed_and_again_after_a_failure() {
    let server = Server::start_with(|config| config.allow_internal_webhooks = true).await;
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

#[tokio::test]
async fn https_webhooks_are_sent_only_to_whom_is_certified() {
    let (known, stranger) = (Arc::new(Receiver::default()), Arc::new(Receiver::default()));
    let (url, authority) = Arc::clone(&known).start_tls().await;
    let (strange_url, _) = Arc::clone(&stranger).start_tls().await;
    let server = Server::start_with(move |config| {
        config.allow_internal_webhooks = true;
        config.webhook_authorities.clone_from(&authority);
    })
    .await;
    for url in [&strange_url, &url] {
        assert_eq!(server.client.post("/events/webhooks", body(url)).await.status, 201, "{url}");
    }
    server.create(json!({})).await;
    until("it was delivered", || async { known.seen.lock().unwrap().len() == 1 }).await;
    assert!(stranger.seen.lock().unwrap().is_empty());
}
