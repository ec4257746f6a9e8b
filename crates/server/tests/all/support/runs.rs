//! Tool calls of runs, as agents make them.

use std::time::Duration;

use isopod_server::ServerConfig;
use serde_json::json;

use super::{Answer, Server};

pub async fn execute(server: &Server, run: &str, code: &str) -> Answer {
    server.client.post(&format!("/runtime/{run}/execute"), json!({ "code": code })).await
}

/// The sandbox that a call was made in.
pub fn sandbox_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json["sandbox_id"].as_str().unwrap().to_owned()
}

/// Settings of a server that soon notices a dead sandbox.
pub fn rechecks_often(config: &mut ServerConfig) {
    config.control.recheck_every = Duration::from_millis(50);
}
