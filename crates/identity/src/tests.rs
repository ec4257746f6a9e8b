//! Valid and invalid tokens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt as _;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "a secret of at least thirty-two bytes";

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn hs256(header: &Value, claims: &Value, secret: &str) -> String {
    let signed = format!("{}.{}", encode(header), encode(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let signature = ring::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn with_secret() -> TokenCheck {
    TokenCheck::new(
        TeamTokens {
            key: TokenKey::Secret(Secret(SECRET.to_owned())),
            issuer: None,
            audience: Some("authenticated".to_owned()),
        },
        Vec::new(),
    )
}

fn claims() -> Value {
    let exp = Timestamp::now().unix_seconds() + 600;
    json!({ "sub": "u1", "exp": exp, "aud": "authenticated", "app_metadata": { "teams": ["t1"] } })
}

fn changed(key: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[key] = value;
    claims
}

#[tokio::test]
async fn a_good_token_names_its_subject_and_its_teams() {
    let found =
        with_secret().check(&hs256(&json!({ "alg": "HS256" }), &claims(), SECRET), Timestamp::now()).await.unwrap();
    assert_eq!(found.sub, "u1");
    assert!(found.names_team("t1") && !found.names_team("t2"));
}

#[tokio::test]
async fn what_people_write_about_themselves_names_no_team() {
    let claims = json!({ "sub": "u1", "exp": 9_999_999_999_i64, "aud": "authenticated",
        "user_metadata": { "teams": ["t1"], "team_id": "t1" } });
    let found =
        with_secret().check(&hs256(&json!({ "alg": "HS256" }), &claims, SECRET), Timestamp::now()).await.unwrap();
    assert!(!found.names_team("t1"));
}

#[tokio::test]
async fn bad_tokens_are_refused() {
    let header = json!({ "alg": "HS256" });
    let unsigned = format!("{}.{}.", encode(&json!({ "alg": "none" })), encode(&claims()));
    let past = Timestamp::now().unix_seconds() - 3600;
    let bad = [
        (unsigned, "Algorithm"),
        (hs256(&json!({ "alg": "HS512" }), &claims(), SECRET), "Algorithm"),
        (hs256(&header, &claims(), "another secret"), "Signature"),
        (hs256(&header, &changed("exp", json!(past)), SECRET), "Expired"),
        (hs256(&header, &changed("exp", json!(null)), SECRET), "Expired"),
        (hs256(&header, &changed("nbf", json!(9_999_999_999_i64)), SECRET), "NotYet"),
        (hs256(&header, &changed("aud", json!("others")), SECRET), "Audience"),
        (hs256(&header, &changed("sub", json!(7)), SECRET), "Malformed"),
        (hs256(&json!({ "alg": "HS256", "crit": ["x"] }), &claims(), SECRET), "Malformed"),
        ("a.b".to_owned(), "Malformed"),
        (String::new(), "Malformed"),
        ("x".repeat(1 << 20), "Malformed"),
    ];
    for (token, why) in bad {
        let refused = with_secret().check(&token, Timestamp::now()).await.unwrap_err();
        assert!(format!("{refused:?}").starts_with(why), "{why}: {refused:?}");
    }
}

#[tokio::test]
async fn public_keys_are_found_by_name_and_read_again_when_they_change() {
    let (dir, random) = (tempfile::tempdir().unwrap(), SystemRandom::new());
    let path = dir.path().join("jwks.json");
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let jwk = |kid: &str| {
        let part = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&point[range]);
        json!({ "keys": [{ "kty": "oct", "k": "x" }, { "kty": "EC", "crv": "P-256", "kid": kid, "x": part(1..33), "y": part(33..65) }] })
    };
    let sign = |alg: &str| {
        let signed = format!("{}.{}", encode(&json!({ "alg": alg, "kid": "k1" })), encode(&claims()));
        let signature = pair.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    std::fs::write(&path, jwk("old").to_string()).unwrap();
    let check =
        TokenCheck::new(TeamTokens { key: TokenKey::Jwks(path.clone()), issuer: None, audience: None }, Vec::new());
    assert!(matches!(check.check(&sign("ES256"), Timestamp::now()).await, Err(TokenError::UnknownKey)));
    std::fs::write(&path, jwk("k1").to_string()).unwrap();
    std::fs::File::open(&path).unwrap().set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    assert_eq!(check.check(&sign("ES256"), Timestamp::now()).await.unwrap().sub, "u1");
    // The public key must not be taken for a shared secret.
    let forged = hs256(&json!({ "alg": "HS256", "kid": "k1" }), &claims(), &jwk("k1").to_string());
    assert!(matches!(check.check(&forged, Timestamp::now()).await, Err(TokenError::Algorithm)));
    assert!(matches!(check.check(&sign("RS256"), Timestamp::now()).await, Err(TokenError::Signature)));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(check.check(&sign("ES256"), Timestamp::now()).await, Err(TokenError::Keys(_))));
}

/// A fake identity service. Its response can be changed, and its requests are counted.
#[derive(Default)]
struct Service {
    answer: Mutex<(u16, String)>,
    asked: AtomicUsize,
}

impl Service {
    async fn start(self: &Arc<Self>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/.well-known/jwks.json", listener.local_addr().unwrap());
        let service = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = Arc::clone(&service);
                let reply = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    assert_eq!(request.uri().path(), "/.well-known/jwks.json");
                    service.asked.fetch_add(1, Ordering::Relaxed);
                    let (status, body) = service.answer.lock().unwrap().clone();
                    let body = http_body_util::Full::new(bytes::Bytes::from(body));
                    async move { http::Response::builder().status(status).body(body) }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(hyper_util::rt::TokioIo::new(stream), reply));
            }
        });
        url
    }

    fn answers(&self, status: u16, body: &Value) {
        *self.answer.lock().unwrap() = (status, body.to_string());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// A named key of an identity service.
struct Signer {
    kid: &'static str,
    pair: Ed25519KeyPair,
}

impl Signer {
    fn new(kid: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { kid, pair: Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap() }
    }

    fn jwk(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": self.kid, "x": x })
    }

    fn token(&self) -> String {
        let signed = format!("{}.{}", encode(&json!({ "alg": "EdDSA", "kid": self.kid })), encode(&claims()));
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn at(url: &str, min_interval: Duration) -> TokenCheck {
    let tokens = TeamTokens { key: TokenKey::JwksUrl(url.to_owned()), issuer: None, audience: None };
    let remote = RemoteKeys::new(url.to_owned(), Trust::new(Vec::new()), min_interval);
    TokenCheck { remote: Some(Arc::new(remote)), ..TokenCheck::new(tokens, Vec::new()) }
}

#[tokio::test]
async fn keys_at_a_url_are_fetched_once_and_again_when_a_token_names_a_new_one() {
    let service = Arc::<Service>::default();
    let url = service.start().await;
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    service.answers(200, &json!({ "keys": [old.jwk()] }));
    let check = at(&url, Duration::ZERO);
    let all = futures::future::join_all((0..20).map(|_| async { check.check(&old.token(), Timestamp::now()).await }));
    assert!(all.await.iter().all(|checked| checked.as_ref().is_ok_and(|claims| claims.sub == "u1")));
    assert_eq!(service.asked(), 1, "they are kept, and who comes at the same time waits for the same ones");
    assert!(matches!(check.check(&new.token(), Timestamp::now()).await, Err(TokenError::UnknownKey)));
    service.answers(200, &json!({ "keys": [old.jwk(), new.jwk()] }));
    assert!(check.check(&new.token(), Timestamp::now()).await.is_ok());
    assert_eq!(service.asked(), 3);
    // A token that is not signed with a public key causes no fetch.
    let forged = hs256(&json!({ "alg": "HS256", "kid": "other" }), &claims(), &new.jwk().to_string());
    assert!(matches!(check.check(&forged, Timestamp::now()).await, Err(TokenError::Algorithm)));
    assert_eq!(service.asked(), 3);
    // A failing service does not invalidate known keys.
    service.answers(500, &json!({}));
    assert!(check.check(&new.token(), Timestamp::now()).await.is_ok());
    let stranger = Signer::new("stranger");
    assert!(matches!(check.check(&stranger.token(), Timestamp::now()).await, Err(TokenError::UnknownKey)));
}

#[tokio::test]
async fn tokens_with_names_that_nobody_knows_do_not_make_us_ask_more_than_once_a_minute() {
    let service = Arc::<Service>::default();
    let url = service.start().await;
    service.answers(200, &json!({ "keys": [Signer::new("k").jwk()] }));
    let check = at(&url, remote_keys::MIN_INTERVAL);
    let stranger = Signer::new("stranger");
    for _ in 0..10 {
        assert!(matches!(check.check(&stranger.token(), Timestamp::now()).await, Err(TokenError::UnknownKey)));
    }
    assert_eq!(service.asked(), 1);
}

#[tokio::test]
async fn a_url_without_keys_is_told_apart_from_a_bad_token() {
    let signer = Signer::new("k");
    let service = Arc::<Service>::default();
    let url = service.start().await;
    for (status, body) in [(500, json!({})), (200, json!("no set")), (302, json!({ "keys": [signer.jwk()] }))] {
        service.answers(status, &body);
        let refused = at(&url, Duration::ZERO).check(&signer.token(), Timestamp::now()).await;
        assert!(matches!(refused, Err(TokenError::Keys(_))), "{status}: {refused:?}");
    }
    let nobody = at("http://127.0.0.1:1/", Duration::ZERO).check(&signer.token(), Timestamp::now()).await;
    assert!(matches!(nobody, Err(TokenError::Keys(KeyError::Fetch { .. }))), "{nobody:?}");
}

proptest! {
    #[test]
    fn no_text_makes_the_check_fail_otherwise(text in "[A-Za-z0-9_.-]{0,200}") {
        let checked = with_secret().check(&text, Timestamp::now()).now_or_never();
        prop_assert!(checked.is_some_and(|checked| checked.is_err()), "a secret is checked without waiting");
    }
}
