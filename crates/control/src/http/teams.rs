//! `GET /teams`: what the CLI asks after a login.

use axum::Json;
use serde_json::{Value, json};

use super::auth::Caller;

pub(super) async fn list(caller: Caller) -> Json<Value> {
    let name = &caller.team_name;
    Json(json!([{ "teamID": caller.team, "name": name, "apiKey": caller.key.0, "isDefault": true }]))
}
