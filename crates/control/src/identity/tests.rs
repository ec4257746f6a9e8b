//! Tokens that count and tokens that do not (S3.24).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
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
    TokenCheck::new(TeamTokens {
        key: TokenKey::Secret(Secret(SECRET.to_owned())),
        issuer: None,
        audience: Some("authenticated".to_owned()),
    })
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

#[test]
fn a_good_token_names_its_subject_and_its_teams() {
    let found = with_secret().check(&hs256(&json!({ "alg": "HS256" }), &claims(), SECRET), Timestamp::now()).unwrap();
    assert_eq!(found.sub, "u1");
    assert!(found.names_team("t1") && !found.names_team("t2"));
}

#[test]
fn what_people_write_about_themselves_names_no_team() {
    let claims = json!({ "sub": "u1", "exp": 9_999_999_999_i64, "aud": "authenticated",
        "user_metadata": { "teams": ["t1"], "team_id": "t1" } });
    let found = with_secret().check(&hs256(&json!({ "alg": "HS256" }), &claims, SECRET), Timestamp::now()).unwrap();
    assert!(!found.names_team("t1"));
}

#[test]
fn bad_tokens_are_refused() {
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
        let refused = with_secret().check(&token, Timestamp::now()).unwrap_err();
        assert!(format!("{refused:?}").starts_with(why), "{why}: {refused:?}");
    }
}

#[test]
fn public_keys_are_found_by_name_and_read_again_when_they_change() {
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
    let check = TokenCheck::new(TeamTokens { key: TokenKey::Jwks(path.clone()), issuer: None, audience: None });
    assert!(matches!(check.check(&sign("ES256"), Timestamp::now()), Err(TokenError::UnknownKey)));
    std::fs::write(&path, jwk("k1").to_string()).unwrap();
    std::fs::File::open(&path).unwrap().set_modified(SystemTime::now() + std::time::Duration::from_secs(5)).unwrap();
    assert_eq!(check.check(&sign("ES256"), Timestamp::now()).unwrap().sub, "u1");
    // The public key must not be taken for a shared secret.
    let forged = hs256(&json!({ "alg": "HS256", "kid": "k1" }), &claims(), &jwk("k1").to_string());
    assert!(matches!(check.check(&forged, Timestamp::now()), Err(TokenError::Algorithm)));
    assert!(matches!(check.check(&sign("RS256"), Timestamp::now()), Err(TokenError::Signature)));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(check.check(&sign("ES256"), Timestamp::now()), Err(TokenError::Keys(_))));
}

proptest! {
    #[test]
    fn no_text_makes_the_check_fail_otherwise(text in "[A-Za-z0-9_.-]{0,200}") {
        prop_assert!(with_secret().check(&text, Timestamp::now()).is_err());
    }
}
