//! One signed POST. Redirects are not followed: they could lead anywhere.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Request;
use sha2::{Digest as _, Sha256};

use super::address::Target;
use super::request::{PostError, request};
use super::trust::Trust;
use crate::config::ServeConfig;
use crate::store::Delivery;

/// Sends deliveries.
pub(crate) struct Poster {
    allow_internal: bool,
    trust: Trust,
}

impl Poster {
    pub(crate) fn new(config: &ServeConfig) -> Self {
        Self { allow_internal: config.allow_internal_webhooks, trust: Trust::new(config.webhook_authorities.clone()) }
    }

    pub(super) async fn post(&self, delivery: &Delivery) -> Result<(), PostError> {
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
        let head = request(&target, &self.trust, self.allow_internal, post).await?;
        if head.status.is_success() { Ok(()) } else { Err(PostError::Status(head.status)) }
    }
}

fn signature(secret: &str, body: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(secret);
    hash.update(body);
    STANDARD_NO_PAD.encode(hash.finalize())
}
