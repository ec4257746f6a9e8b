//! Sends one signed POST. Does not follow redirects, because they could lead anywhere.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Request;
use isopod_outbound::{Policy, RequestError, Target, Trust, request};
use isopod_store::Delivery;
use sha2::{Digest as _, Sha256};

/// Sends requests to receivers.
#[derive(Debug)]
pub struct Poster {
    policy: Policy,
    trust: Trust,
}

impl Poster {
    /// `policy` says where receivers may be, and `trust` which certificates they may have.
    pub fn new(policy: Policy, trust: Trust) -> Self {
        Self { policy, trust }
    }

    pub(crate) async fn post(&self, delivery: &Delivery) -> Result<(), RequestError> {
        let target = Target::parse(&delivery.url)?;
        let post = Request::post(&target.path)
            .header("host", &target.authority)
            .header("content-type", "application/json")
            .header("user-agent", concat!("isopod/", env!("CARGO_PKG_VERSION")))
            .header("e2b-webhook-id", &delivery.webhook)
            .header("e2b-delivery-id", &delivery.id)
            .header("e2b-signature-version", "v1")
            .header("e2b-signature", signature(&delivery.secret.0, &delivery.body))
            .body(Body::from(delivery.body.clone()))?;
        let head = request(&target, &self.trust, &self.policy, post).await?;
        if head.status.is_success() { Ok(()) } else { Err(RequestError::Status(head.status)) }
    }
}

fn signature(secret: &str, body: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(secret);
    hash.update(body);
    STANDARD_NO_PAD.encode(hash.finalize())
}
