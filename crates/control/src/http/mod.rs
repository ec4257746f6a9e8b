//! The REST API in E2B's words. Handlers read a request into checked values, ask the fleet or the store, and write the
//! answer; what is allowed is decided by those they ask.

mod api_keys;
mod auth;
mod body;
mod browser;
mod error;
mod events;
mod execution_files;
mod executions;
mod file_bodies;
mod health;
mod idempotency;
mod logs;
mod metrics;
mod network_config;
mod new_sandbox;
mod noted;
mod openapi;
mod runtime;
mod runtime_orders;
mod runtime_runs;
mod runtime_watch;
mod sandbox_connect;
mod sandbox_create;
mod sandbox_get;
mod sandbox_kill;
mod sandbox_list;
mod sandbox_network;
mod sandbox_pause;
mod sandbox_timeout;
mod sandbox_views;
mod service;
mod teams;
mod template_build;
mod template_change;
mod template_context;
mod template_files;
mod template_status;
mod template_tags;
mod templates;
mod toolkit;
mod unsupported;
mod volume_content;
mod volume_mounts;
mod volumes;
mod webhooks;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, patch, post, put};

use crate::app::App;
pub(crate) use browser::check_browser;

/// Every route of the API.
pub(crate) fn router(app: Arc<App>) -> Router {
    let noted = sandbox_routes()
        .merge(other_routes())
        .merge(template_routes())
        .merge(workspace_routes())
        .merge(runtime::routes())
        .merge(runtime_runs::routes())
        .layer(from_fn_with_state(Arc::clone(&app), noted::noted));
    noted
        .merge(service::routes(&app))
        .merge(unsupported::routes())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(app)
}

fn sandbox_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2/sandboxes", post(sandbox_create::create_v2).get(sandbox_list::list_v2))
        .route("/sandboxes", post(sandbox_create::create_v1).get(sandbox_list::list_v1))
        .route("/sandboxes/metrics", get(metrics::of_many))
        .route("/sandboxes/{id}", get(sandbox_get::get).delete(sandbox_kill::kill))
        .route("/v2/sandboxes/{id}/connect", post(sandbox_connect::connect_v2))
        .route("/sandboxes/{id}/connect", post(sandbox_connect::connect_v1))
        .route("/sandboxes/{id}/resume", post(sandbox_connect::resume))
        .route("/sandboxes/{id}/timeout", post(sandbox_timeout::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(sandbox_timeout::refresh))
        .route("/sandboxes/{id}/pause", post(sandbox_pause::pause))
        .route("/sandboxes/{id}/network", put(sandbox_network::set_network))
        .route("/sandboxes/{id}/metrics", get(metrics::of_one))
        .route("/sandboxes/{id}/logs", get(logs::list_v1))
        .route("/v2/sandboxes/{id}/logs", get(logs::list_v2))
}

fn other_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(health::health))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(openapi::page))
        .route("/teams", get(teams::list))
        .route("/api-keys", get(api_keys::list).post(api_keys::create))
        .route("/api-keys/{id}/rotate", post(api_keys::rotate))
        .route("/api-keys/{id}", patch(api_keys::rename).merge(delete(api_keys::revoke)))
        .route("/events/webhooks", get(webhooks::list).post(webhooks::create))
        .route("/events/webhooks/{id}", get(webhooks::get).patch(webhooks::change).delete(webhooks::remove))
        .route("/events/sandboxes", get(events::of_team))
        .route("/events/sandboxes/{id}", get(events::of_sandbox))
}

fn template_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/templates", get(templates::list).post(template_build::request_legacy))
        .route("/v2/templates", get(templates::list).post(template_build::request))
        .route("/v3/templates", post(template_build::request))
        .route("/default-templates", get(templates::list_default))
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/templates/tags", post(template_tags::assign).merge(delete(template_tags::remove)))
        .route(
            "/templates/{id}",
            get(templates::get)
                .post(template_build::rebuild_legacy)
                .patch(template_change::change)
                .delete(template_change::remove),
        )
        .route("/v2/templates/{id}", patch(template_change::change))
        .route("/templates/{id}/tags", get(template_tags::list))
        .route("/templates/{id}/tags/count", get(template_tags::count))
        .route("/templates/{id}/tags/exists", get(template_tags::exists))
        .route("/templates/{id}/files/{hash}", get(template_files::link))
        .route("/templates/{id}/builds/{build}", post(template_build::start_legacy))
        .route("/v2/templates/{id}/builds/{build}", post(template_build::start))
        .route("/templates/{id}/builds/{build}/status", get(template_status::status))
        .route("/templates/{id}/builds/{build}/logs", get(template_status::logs))
        .route("/isopod/uploads/{token}", put(template_files::upload))
        .route("/isopod/templates/builds", post(template_context::build))
        .route("/isopod/templates/builds/{build}/cancel", post(template_build::cancel))
}

fn workspace_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/executions", get(executions::list))
        .route("/api/v1/executions/{id}", put(executions::open).delete(executions::remove))
        .route("/api/v1/executions/{id}/info", get(executions::info))
        .route("/api/v1/executions/{id}/cleanup", post(executions::cleanup))
        .route("/api/v1/executions/{id}/copy", post(executions::copy))
        .route("/api/v1/executions/{id}/move", post(executions::rename))
        .route("/api/v1/executions/{id}/files", get(execution_files::list))
        .route(
            "/api/v1/executions/{id}/files/{*key}",
            get(execution_files::get)
                .head(execution_files::head)
                .put(execution_files::put)
                .delete(execution_files::delete),
        )
        .route("/api/v1/toolkit", get(toolkit::tools))
        .route(
            "/api/v1/executions/{id}/toolkit",
            get(toolkit::config).put(toolkit::configure).post(toolkit::start).delete(toolkit::end),
        )
        .route("/api/v1/executions/{id}/toolkit/{tool}", post(toolkit::call))
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/{id}", get(volumes::get).delete(volumes::remove))
        .route(
            "/volumecontent/{id}/path",
            get(volume_content::stat).patch(volume_content::change).delete(volume_content::remove),
        )
        .route("/volumecontent/{id}/dir", get(volume_content::list).post(volume_content::make_dir))
        .route("/volumecontent/{id}/file", get(volume_content::read).put(volume_content::write))
}
