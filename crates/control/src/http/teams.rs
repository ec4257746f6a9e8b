//! `GET /teams`, which the CLI requests after a login.

use isopod_api::{Caller, Listing};
use serde::Serialize;
use utoipa::ToSchema;

/// The caller's team.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CallersTeam)]
pub(super) struct TeamView {
    #[serde(rename = "teamID")]
    team_id: String,
    name: String,
    api_key: String,
    is_default: bool,
}

pub(super) async fn list(caller: Caller) -> Listing<TeamView> {
    let team = TeamView { team_id: caller.team.0, name: caller.team_name, api_key: caller.key.0, is_default: true };
    Listing(vec![team])
}
