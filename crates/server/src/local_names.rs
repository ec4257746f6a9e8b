//! `GET /isopod/env`: how programs of this machine find the server under other domains than its own.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::config::{LocalNames, ServedNames};
use crate::parts::Parts;

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let (names, problem) = match &parts.local_names {
        LocalNames::Served(ServedNames { domains, address, authority }) => {
            (json!({ "domains": domains, "address": address, "authority": authority }), None)
        }
        LocalNames::Missing(reason) => (Value::Null, Some(reason)),
    };
    Json(json!({ "domain": parts.app.domain(), "names": names, "problem": problem }))
}
