//! What the exporter is told.

use std::time::Duration;

use http::HeaderMap;

/// Where spans go and what they say about their origin.
#[derive(Clone, Debug)]
pub struct OtlpConfig {
    /// The whole URL, such as `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Sent with every batch, for collectors that want a key.
    pub headers: HeaderMap,
    /// What this server is called.
    pub service_name: String,
    /// More about it, as names and values.
    pub attributes: Vec<(String, String)>,
    /// The longest that one batch may take.
    pub timeout: Duration,
}
