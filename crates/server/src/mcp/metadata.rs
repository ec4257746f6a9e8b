//! `GET /.well-known/oauth-protected-resource`: how MCP clients authenticate (RFC 9728).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;

use super::{McpEndpoint, base_url};

pub(super) const SUMMARY: &str = "Get how clients of /mcp authenticate";

/// What a client needs to know about the protected resource.
#[derive(Serialize, ToSchema)]
#[schema(as = ProtectedResource)]
pub(super) struct ProtectedResource {
    /// The URL of the MCP endpoint.
    resource: String,
    resource_name: &'static str,
    /// Who issues tokens. Missing if the server accepts only its own keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authorization_servers: Vec<String>,
    bearer_methods_supported: [&'static str; 1],
}

pub(super) async fn get(State(endpoint): State<Arc<McpEndpoint>>, parts: Parts) -> Json<ProtectedResource> {
    let issuer = endpoint.authenticator.tokens.as_ref().and_then(|tokens| tokens.issuer());
    // Other issuers are names, which no client can ask.
    let issuer = issuer.filter(|issuer| issuer.starts_with("https://") || issuer.starts_with("http://"));
    Json(ProtectedResource {
        resource: format!("{}/mcp", base_url(&parts)),
        resource_name: "Isopod",
        authorization_servers: issuer.map(str::to_owned).into_iter().collect(),
        bearer_methods_supported: ["header"],
    })
}
