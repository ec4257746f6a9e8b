//! The REST API in E2B's words. Handlers read a request into checked values, ask the fleet or the store, and write the
//! answer; what is allowed is decided by those they ask.

mod acknowledged;
mod actions;
mod api_keys;
mod app;
mod audited;
mod auth;
mod body;
mod browser;
mod error;
mod events;
mod execution_claim;
mod file_bodies;
mod idempotency;
mod lenient;
mod logs;
mod metrics;
mod network_config;
mod new_sandbox;
mod routes;
mod sandbox_connect;
mod sandbox_create;
mod sandbox_get;
mod sandbox_kill;
mod sandbox_list;
mod sandbox_network;
mod sandbox_pause;
mod sandbox_timeout;
mod sandbox_views;
mod teams;
mod template_build;
mod template_change;
mod template_context;
mod template_files;
mod template_status;
mod template_tags;
mod templates;
mod unsupported;
mod volume_content;
mod volume_mounts;
mod volumes;
mod webhooks;

use std::sync::Arc;

use axum::Router;

pub use acknowledged::{Receipt, until_answered};
pub use actions::Actions;
pub(crate) use app::ApiSettings;
pub use app::App;
pub use audited::{Audit, Durability, audited};
pub use auth::{Authenticator, Caller};
pub use body::{JsonBody, MaxBody, Query, body_error};
pub(crate) use browser::BrowserRules;
pub use error::{ApiError, is_in_the_way};
pub use execution_claim::{claimed_execution, known_execution};
pub use file_bodies::{expected_size, file_store, receive, send};
use routes::Needs::{OwnToken, TeamKey};
pub use routes::{
    DeclaredRoute, Endpoint, Needs, Routes, Rule, any, changes, delete, get, head, patch, post, put, reads, refuses,
};

/// E2B's API.
pub fn routes() -> Routes<Arc<App>> {
    sandbox_routes().merge(team_routes()).merge(template_routes()).merge(volume_routes())
}

/// Known routes of E2B's that this server does not have: they say so.
pub fn unsupported_routes() -> Routes<Arc<App>> {
    unsupported::routes()
}

/// What is behind no route.
pub fn with_fallbacks(router: Router) -> Router {
    router.fallback(error::no_such_route).method_not_allowed_fallback(error::no_such_method)
}

fn sandbox_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/sandboxes",
            [
                post(changes(TeamKey, "sandbox.create"), sandbox_create::create_v2),
                get(reads(TeamKey), sandbox_list::list_v2),
            ],
        )
        .route(
            "/sandboxes",
            [
                post(changes(TeamKey, "sandbox.create"), sandbox_create::create_v1),
                get(reads(TeamKey), sandbox_list::list_v1),
            ],
        )
        .route("/sandboxes/metrics", [get(reads(TeamKey), metrics::of_many)])
        .route(
            "/sandboxes/{id}",
            [get(reads(TeamKey), sandbox_get::get), delete(changes(TeamKey, "sandbox.destroy"), sandbox_kill::kill)],
        )
        .route("/v2/sandboxes/{id}/connect", [post(changes(TeamKey, "sandbox.connect"), sandbox_connect::connect_v2)])
        .route("/sandboxes/{id}/connect", [post(changes(TeamKey, "sandbox.connect"), sandbox_connect::connect_v1)])
        .route("/sandboxes/{id}/resume", [post(changes(TeamKey, "sandbox.resume"), sandbox_connect::resume)])
        .route("/sandboxes/{id}/timeout", [post(changes(TeamKey, "sandbox.set_timeout"), sandbox_timeout::set_timeout)])
        .route("/sandboxes/{id}/refreshes", [post(changes(TeamKey, "sandbox.refresh"), sandbox_timeout::refresh)])
        .route("/sandboxes/{id}/pause", [post(changes(TeamKey, "sandbox.pause"), sandbox_pause::pause)])
        .route("/sandboxes/{id}/network", [put(changes(TeamKey, "sandbox.set_network"), sandbox_network::set_network)])
        .route("/sandboxes/{id}/metrics", [get(reads(TeamKey), metrics::of_one)])
        .route("/sandboxes/{id}/logs", [get(reads(TeamKey), logs::list_v1)])
        .route("/v2/sandboxes/{id}/logs", [get(reads(TeamKey), logs::list_v2)])
}

fn team_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/teams", [get(reads(TeamKey), teams::list)])
        .route(
            "/api-keys",
            [get(reads(TeamKey), api_keys::list), post(changes(TeamKey, "api_key.create"), api_keys::create)],
        )
        .route("/api-keys/{id}/rotate", [post(changes(TeamKey, "api_key.rotate"), api_keys::rotate)])
        .route(
            "/api-keys/{id}",
            [
                patch(changes(TeamKey, "api_key.rename"), api_keys::rename),
                delete(changes(TeamKey, "api_key.revoke"), api_keys::revoke),
            ],
        )
        .route(
            "/events/webhooks",
            [get(reads(TeamKey), webhooks::list), post(changes(TeamKey, "webhook.create"), webhooks::create)],
        )
        .route(
            "/events/webhooks/{id}",
            [
                get(reads(TeamKey), webhooks::get),
                patch(changes(TeamKey, "webhook.change"), webhooks::change),
                delete(changes(TeamKey, "webhook.remove"), webhooks::remove),
            ],
        )
        .route("/events/sandboxes", [get(reads(TeamKey), events::of_team)])
        .route("/events/sandboxes/{id}", [get(reads(TeamKey), events::of_sandbox)])
}

fn template_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/templates",
            [
                get(reads(TeamKey), templates::list),
                post(changes(TeamKey, "template.request_build"), template_build::request_legacy),
            ],
        )
        .route(
            "/v2/templates",
            [
                get(reads(TeamKey), templates::list),
                post(changes(TeamKey, "template.request_build"), template_build::request),
            ],
        )
        .route("/v3/templates", [post(changes(TeamKey, "template.request_build"), template_build::request)])
        .route("/default-templates", [get(reads(TeamKey), templates::list_default)])
        .route("/templates/aliases/{alias}", [get(reads(TeamKey), templates::alias)])
        .route(
            "/templates/tags",
            [
                post(changes(TeamKey, "template.tag"), template_tags::assign),
                delete(changes(TeamKey, "template.untag"), template_tags::remove),
            ],
        )
        .route(
            "/templates/{id}",
            [
                get(reads(TeamKey), templates::get),
                post(changes(TeamKey, "template.request_build"), template_build::rebuild_legacy),
                patch(changes(TeamKey, "template.change"), template_change::change),
                delete(changes(TeamKey, "template.remove"), template_change::remove),
            ],
        )
        .route("/v2/templates/{id}", [patch(changes(TeamKey, "template.change"), template_change::change)])
        .route("/templates/{id}/tags", [get(reads(TeamKey), template_tags::list)])
        .route("/templates/{id}/tags/count", [get(reads(TeamKey), template_tags::count)])
        .route("/templates/{id}/tags/exists", [get(reads(TeamKey), template_tags::exists)])
        .route("/templates/{id}/files/{hash}", [get(reads(TeamKey), template_files::link)])
        .route(
            "/templates/{id}/builds/{build}",
            [post(changes(TeamKey, "template.build"), template_build::start_legacy)],
        )
        .route("/v2/templates/{id}/builds/{build}", [post(changes(TeamKey, "template.build"), template_build::start)])
        .route("/templates/{id}/builds/{build}/status", [get(reads(TeamKey), template_status::status)])
        .route("/templates/{id}/builds/{build}/logs", [get(reads(TeamKey), template_status::logs)])
        .route("/isopod/uploads/{token}", [put(changes(OwnToken, "template.upload"), template_files::upload)])
        .route("/isopod/templates/builds", [post(changes(TeamKey, "template.build"), template_context::build)])
        .route(
            "/isopod/templates/builds/{build}/cancel",
            [post(changes(TeamKey, "template.cancel_build"), template_build::cancel)],
        )
}

fn volume_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/volumes",
            [get(reads(TeamKey), volumes::list), post(changes(TeamKey, "volume.create"), volumes::create)],
        )
        .route(
            "/volumes/{id}",
            [get(reads(TeamKey), volumes::get), delete(changes(TeamKey, "volume.remove"), volumes::remove)],
        )
        .route(
            "/volumecontent/{id}/path",
            [
                get(reads(OwnToken), volume_content::stat),
                patch(changes(OwnToken, "volume.change_entry"), volume_content::change),
                delete(changes(OwnToken, "volume.remove_entry"), volume_content::remove),
            ],
        )
        .route(
            "/volumecontent/{id}/dir",
            [
                get(reads(OwnToken), volume_content::list),
                post(changes(OwnToken, "volume.make_directory"), volume_content::make_dir),
            ],
        )
        .route(
            "/volumecontent/{id}/file",
            [
                get(reads(OwnToken), volume_content::read),
                put(changes(OwnToken, "volume.write_file"), volume_content::write),
            ],
        )
}
