//! The exporter's configuration.

use std::time::Duration;

use http::HeaderMap;

/// Where spans are sent, and how they describe their origin.
#[derive(Clone, Debug)]
pub struct OtlpConfig {
    /// The complete URL, for example `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Sent with every batch, for collectors that require a key.
    pub headers: HeaderMap,
    /// The name of this server in its spans.
    pub service_name: String,
    /// Further attributes of this server, as names and values.
    pub attributes: Vec<(String, String)>,
    /// The time limit for sending one batch.
    pub timeout: Duration,
}
