//! The REST API in E2B's words. Handlers read a request into checked values, ask the fleet or the store, and write the
//! answer; what is allowed is decided by those they ask.

mod acknowledged;
mod api_keys;
mod app;
mod browser;
mod errors;
mod events;
mod file_bodies;
mod find_sandbox;
mod idempotency;
mod logs;
mod metrics;
mod network_config;
mod new_sandbox;
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

use isopod_api::Needs::{OwnToken, TeamKey};
use isopod_api::{Routes, changes, delete, get, patch, post, put, reads};

pub(crate) use app::ApiSettings;
pub use app::App;
pub(crate) use browser::BrowserRules;
pub use errors::is_in_the_way;
pub use file_bodies::{expected_size, file_store, receive, send};

/// E2B's API.
pub fn routes() -> Routes<Arc<App>> {
    sandbox_routes().merge(team_routes()).merge(template_routes()).merge(volume_routes())
}

/// Known routes of E2B's that this server does not have: they say so.
pub fn unsupported_routes() -> Routes<Arc<App>> {
    unsupported::routes()
}

fn sandbox_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/sandboxes",
            [
                post(changes(TeamKey, "sandbox.create"), "Make a sandbox", sandbox_create::create_v2)
                    .may_refuse(NO_SANDBOX),
                get(reads(TeamKey), "List sandboxes in pages", sandbox_list::list_v2),
            ],
        )
        .route(
            "/sandboxes",
            [
                post(
                    changes(TeamKey, "sandbox.create"),
                    "Make a sandbox (first version: 15 s, secured only when asked)",
                    sandbox_create::create_v1,
                )
                .may_refuse(NO_SANDBOX),
                get(reads(TeamKey), "List all running sandboxes", sandbox_list::list_v1),
            ],
        )
        .route(
            "/sandboxes/metrics",
            [get(reads(TeamKey), "The last resource use of several sandboxes", metrics::of_many)],
        )
        .route("/sandboxes/{id}/metrics", [get(reads(TeamKey), "Resource use over time", metrics::of_one)])
        .route("/sandboxes/{id}/logs", [get(reads(TeamKey), "Log lines", logs::list_v1)])
        .route("/v2/sandboxes/{id}/logs", [get(reads(TeamKey), "Log lines, forward or backward", logs::list_v2)])
        .merge(lifecycle_routes())
}

/// Whatever a create may be told.
const NO_SANDBOX: &[u16] = &[404, 409, 421, 429, 501, 504];

/// Of one sandbox, which may be on another server, or busy.
fn lifecycle_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/sandboxes/{id}/connect",
            [post(
                changes(TeamKey, "sandbox.connect"),
                "Use a sandbox for at least so long, resuming it if it is paused",
                sandbox_connect::connect_v2,
            )],
        )
        .route(
            "/sandboxes/{id}/connect",
            [post(changes(TeamKey, "sandbox.connect"), "Use a sandbox (first version)", sandbox_connect::connect_v1)],
        )
        .route(
            "/sandboxes/{id}/resume",
            [post(changes(TeamKey, "sandbox.resume"), "Resume a paused sandbox", sandbox_connect::resume)],
        )
        .route(
            "/sandboxes/{id}/timeout",
            [post(changes(TeamKey, "sandbox.set_timeout"), "Set the end of its time", sandbox_timeout::set_timeout)],
        )
        .route(
            "/sandboxes/{id}/refreshes",
            [post(changes(TeamKey, "sandbox.refresh"), "Extend its time", sandbox_timeout::refresh)],
        )
        .route(
            "/sandboxes/{id}/pause",
            [post(changes(TeamKey, "sandbox.pause"), "Pause a sandbox", sandbox_pause::pause)],
        )
        .route(
            "/sandboxes/{id}/network",
            [put(changes(TeamKey, "sandbox.set_network"), "Replace the network policy", sandbox_network::set_network)
                .may_refuse(&[501])],
        )
        .may_refuse(&[429])
        .route(
            "/sandboxes/{id}",
            [
                get(reads(TeamKey), "Show a sandbox", sandbox_get::get),
                delete(changes(TeamKey, "sandbox.destroy"), "End a sandbox", sandbox_kill::kill),
            ],
        )
        .may_refuse(&[409, 421, 504])
}

fn team_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/teams", [get(reads(TeamKey), "The caller's team", teams::list)])
        .route(
            "/api-keys",
            [
                get(reads(TeamKey), "List keys", api_keys::list),
                post(changes(TeamKey, "api_key.create"), "Make a key", api_keys::create),
            ],
        )
        .route(
            "/api-keys/{id}/rotate",
            [post(
                changes(TeamKey, "api_key.rotate"),
                "A new key like this one, which counts on until the overlap is over",
                api_keys::rotate,
            )],
        )
        .route(
            "/api-keys/{id}",
            [
                patch(changes(TeamKey, "api_key.rename"), "Rename a key", api_keys::rename),
                delete(changes(TeamKey, "api_key.revoke"), "Revoke a key", api_keys::revoke),
            ],
        )
        .route(
            "/events/webhooks",
            [
                get(reads(TeamKey), "List webhooks", webhooks::list),
                post(changes(TeamKey, "webhook.create"), "Make a webhook", webhooks::create).may_refuse(&[429]),
            ],
        )
        .route(
            "/events/webhooks/{id}",
            [
                get(reads(TeamKey), "Show a webhook", webhooks::get),
                patch(changes(TeamKey, "webhook.change"), "Change a webhook", webhooks::change).may_refuse(&[429]),
                delete(changes(TeamKey, "webhook.remove"), "Remove a webhook", webhooks::remove),
            ],
        )
        .route("/events/sandboxes", [get(reads(TeamKey), "What happened to the team's sandboxes", events::of_team)])
        .route("/events/sandboxes/{id}", [get(reads(TeamKey), "What happened to one sandbox", events::of_sandbox)])
}

fn template_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/templates", [get(reads(TeamKey), "List templates", templates::list)])
        .route("/v2/templates", [get(reads(TeamKey), "List templates", templates::list)])
        .route(
            "/default-templates",
            [get(reads(TeamKey), "List the templates that come with the server", templates::list_default)],
        )
        .route("/templates/aliases/{alias}", [get(reads(TeamKey), "Find a template by name", templates::alias)])
        .route(
            "/templates/tags",
            [
                post(changes(TeamKey, "template.tag"), "Give tags to a build", template_tags::assign)
                    .may_refuse(&[404]),
                delete(changes(TeamKey, "template.untag"), "Remove tags", template_tags::remove).may_refuse(&[404]),
            ],
        )
        .route(
            "/templates/{id}",
            [
                get(reads(TeamKey), "Show a template", templates::get),
                patch(
                    changes(TeamKey, "template.change"),
                    "Publish a template, or take it back",
                    template_change::change,
                ),
                delete(changes(TeamKey, "template.remove"), "Remove a template", template_change::remove),
            ],
        )
        .route(
            "/v2/templates/{id}",
            [patch(
                changes(TeamKey, "template.change"),
                "Publish a template, or take it back",
                template_change::change,
            )],
        )
        .route("/templates/{id}/tags", [get(reads(TeamKey), "List the tags of a template", template_tags::list)])
        .route(
            "/templates/{id}/tags/count",
            [get(reads(TeamKey), "Count the tags of a template", template_tags::count)],
        )
        .route(
            "/templates/{id}/tags/exists",
            [get(reads(TeamKey), "Ask whether a template has a tag", template_tags::exists)],
        )
        .route(
            "/templates/{id}/files/{hash}",
            [get(reads(TeamKey), "A link to upload the files of a build", template_files::link)],
        )
        .route(
            "/isopod/uploads/{token}",
            [put(changes(OwnToken, "template.upload"), "Upload files by a link", template_files::upload)
                .never_refuses(404)
                .may_refuse(&[403])],
        )
        .route(
            "/templates/{id}/builds/{build}/status",
            [get(reads(TeamKey), "How far a build is", template_status::status)],
        )
        .route("/templates/{id}/builds/{build}/logs", [get(reads(TeamKey), "What a build said", template_status::logs)])
        .merge(build_request_routes())
        .merge(build_routes())
}

/// They give ids, and begin nothing.
fn build_request_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v3/templates",
            [post(
                changes(TeamKey, "template.request_build"),
                "Ask for a build of a template",
                template_build::request,
            )],
        )
        .route(
            "/v2/templates",
            [post(
                changes(TeamKey, "template.request_build"),
                "Ask for a build (second version)",
                template_build::request,
            )],
        )
        .route(
            "/templates",
            [post(
                changes(TeamKey, "template.request_build"),
                "Ask for a build from a Dockerfile (first version)",
                template_build::request_legacy,
            )],
        )
        .route(
            "/templates/{id}",
            [post(
                changes(TeamKey, "template.request_build"),
                "Ask for another build from a Dockerfile (first version)",
                template_build::rebuild_legacy,
            )],
        )
        .may_refuse(&[404, 409])
}

/// They begin a build, or end one.
fn build_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/templates/{id}/builds/{build}",
            [post(changes(TeamKey, "template.build"), "Start a build", template_build::start)],
        )
        .route(
            "/templates/{id}/builds/{build}",
            [post(
                changes(TeamKey, "template.build"),
                "Start a build from the Dockerfile that was given (first version)",
                template_build::start_legacy,
            )],
        )
        .route(
            "/isopod/templates/builds",
            [post(
                changes(TeamKey, "template.build"),
                "Build a Dockerfile with its context (a tar archive)",
                template_context::build,
            )],
        )
        .may_refuse(&[429])
        .route(
            "/isopod/templates/builds/{build}/cancel",
            [post(changes(TeamKey, "template.cancel_build"), "Cancel a build", template_build::cancel)],
        )
        .may_refuse(&[404, 409, 421])
}

fn volume_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/volumes",
            [
                get(reads(TeamKey), "List the team's volumes", volumes::list),
                post(changes(TeamKey, "volume.create"), "Make a volume", volumes::create).may_refuse(&[409, 501]),
            ],
        )
        .route(
            "/volumes/{id}",
            [
                get(reads(TeamKey), "Show a volume and its token", volumes::get),
                delete(changes(TeamKey, "volume.remove"), "Remove a volume with all that is in it", volumes::remove)
                    .may_refuse(&[501]),
            ],
        )
        .merge(volume_content_routes())
}

fn volume_content_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/volumecontent/{id}/path",
            [
                get(reads(OwnToken), "What is at a path of a volume", volume_content::stat),
                patch(
                    changes(OwnToken, "volume.change_entry"),
                    "Give an entry of a volume another owner or mode",
                    volume_content::change,
                ),
                delete(changes(OwnToken, "volume.remove_entry"), "Remove an entry of a volume", volume_content::remove),
            ],
        )
        .route(
            "/volumecontent/{id}/dir",
            [
                get(reads(OwnToken), "List a directory of a volume", volume_content::list),
                post(
                    changes(OwnToken, "volume.make_directory"),
                    "Make a directory in a volume",
                    volume_content::make_dir,
                )
                .may_refuse(&[507]),
            ],
        )
        .route(
            "/volumecontent/{id}/file",
            [
                get(reads(OwnToken), "Read a file of a volume", volume_content::read),
                put(changes(OwnToken, "volume.write_file"), "Write a file of a volume", volume_content::write)
                    .may_refuse(&[507]),
            ],
        )
        .may_refuse(&[409, 501])
}
