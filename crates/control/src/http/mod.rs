//! The REST API in E2B's format. Handlers parse a request into checked values, call the fleet or the store, and write
//! the response. The called modules decide what is allowed.

mod acknowledged;
mod api_keys;
mod app;
mod browser;
mod errors;
mod events;
mod execution_mount;
mod file_bodies;
mod find_sandbox;
mod idempotency;
mod logs;
mod metrics;
mod network_config;
mod new_sandbox;
mod node_drain;
mod nodes;
mod sandbox_connect;
mod sandbox_create;
mod sandbox_fork;
mod sandbox_get;
mod sandbox_kill;
mod sandbox_list;
mod sandbox_network;
mod sandbox_pause;
mod sandbox_rollback;
mod sandbox_snapshot;
mod sandbox_timeout;
mod sandbox_views;
mod snapshot_list;
mod snapshot_views;
mod teams;
mod template_build;
mod template_change;
mod template_context;
mod template_context_upload;
mod template_files;
mod template_image;
mod template_status;
mod template_tags;
mod templates;
mod unsupported;
mod volume_content;
mod volume_mounts;
mod volumes;
mod webhooks;

use std::sync::Arc;

use isopod_api::Needs::{AdminKey, OwnToken, TeamKey};
use isopod_api::{Location, Routes, changes, delete, get, patch, post, put, reads};

pub(crate) use app::ApiSettings;
pub use app::App;
pub(crate) use browser::BrowserRules;
pub use errors::is_in_the_way;
pub use file_bodies::{expected_size, file_store, receive, send};

/// The routes of E2B's API.
pub fn routes() -> Routes<Arc<App>> {
    sandbox_routes().merge(node_routes()).merge(team_routes()).merge(template_routes()).merge(volume_routes())
}

/// Known routes of E2B that this server does not support. They return 501.
pub fn unsupported_routes() -> Routes<Arc<App>> {
    unsupported::routes()
}

fn sandbox_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/sandboxes",
            [
                post(changes(TeamKey, "sandbox.create"), "Create a sandbox", sandbox_create::create_v2)
                    .may_refuse(NO_SANDBOX)
                    .makes_sandbox(),
                get(reads(TeamKey), "List sandboxes with pagination", sandbox_list::list_v2),
            ],
        )
        .route(
            "/sandboxes",
            [
                post(
                    changes(TeamKey, "sandbox.create"),
                    "Create a sandbox (version 1: times out after 15 s by default, not secured by default)",
                    sandbox_create::create_v1,
                )
                .may_refuse(NO_SANDBOX)
                .makes_sandbox(),
                get(reads(TeamKey), "List running sandboxes", sandbox_list::list_v1),
            ],
        )
        .route(
            "/sandboxes/metrics",
            [get(reads(TeamKey), "Get the latest metrics of several sandboxes", metrics::of_many)],
        )
        .route("/sandboxes/{id}/metrics", [get(reads(TeamKey), "Get the metrics of a sandbox", metrics::of_one)])
        .route("/sandboxes/{id}/logs", [get(reads(TeamKey), "Get the logs of a sandbox (version 1)", logs::list_v1)])
        .route("/v2/sandboxes/{id}/logs", [get(reads(TeamKey), "Get the logs of a sandbox", logs::list_v2)])
        .merge(lifecycle_routes())
        .located(Location::Sandbox, "id")
}

/// The statuses that a create may return on failure.
const NO_SANDBOX: &[u16] = &[404, 409, 421, 429, 501, 504];

/// Routes of one sandbox, which may be on another server, or busy.
fn lifecycle_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/sandboxes/{id}/connect",
            [post(
                changes(TeamKey, "sandbox.connect"),
                "Connect to a sandbox, resuming it if it is paused, and extend its timeout",
                sandbox_connect::connect_v2,
            )
            .may_refuse(&[501])],
        )
        .route(
            "/sandboxes/{id}/connect",
            [post(
                changes(TeamKey, "sandbox.connect"),
                "Connect to a sandbox (version 1)",
                sandbox_connect::connect_v1,
            )
            .may_refuse(&[501])],
        )
        .route(
            "/sandboxes/{id}/resume",
            [post(changes(TeamKey, "sandbox.resume"), "Resume a paused sandbox", sandbox_connect::resume)
                .may_refuse(&[501])],
        )
        .route(
            "/sandboxes/{id}/timeout",
            [post(
                changes(TeamKey, "sandbox.set_timeout"),
                "Set the timeout of a sandbox",
                sandbox_timeout::set_timeout,
            )],
        )
        .route(
            "/sandboxes/{id}/refreshes",
            [post(changes(TeamKey, "sandbox.refresh"), "Extend the timeout of a sandbox", sandbox_timeout::refresh)],
        )
        .route(
            "/sandboxes/{id}/pause",
            [post(changes(TeamKey, "sandbox.pause"), "Pause a sandbox", sandbox_pause::pause).may_refuse(&[422])],
        )
        .merge(snapshot_routes())
        .route(
            "/sandboxes/{id}/network",
            [put(
                changes(TeamKey, "sandbox.set_network"),
                "Replace the network policy of a sandbox",
                sandbox_network::set_network,
            )
            .may_refuse(&[501])],
        )
        .may_refuse(&[429])
        .route(
            "/sandboxes/{id}",
            [
                get(reads(TeamKey), "Get a sandbox", sandbox_get::get),
                delete(changes(TeamKey, "sandbox.destroy"), "Kill a sandbox", sandbox_kill::kill),
            ],
        )
        .may_refuse(&[409, 421, 504])
}

/// Routes that copy a sandbox or put it back.
fn snapshot_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/sandboxes/{id}/snapshots",
            [post(
                changes(TeamKey, "sandbox.snapshot"),
                "Take a snapshot of a running sandbox",
                sandbox_snapshot::snapshot,
            )],
        )
        .route(
            "/sandboxes/{id}/fork",
            [post(changes(TeamKey, "sandbox.fork"), "Create copies of a running sandbox", sandbox_fork::fork_v1)],
        )
        .route(
            "/v2/sandboxes/{id}/fork",
            [post(
                changes(TeamKey, "sandbox.fork"),
                "Create copies of a running sandbox, version 2",
                sandbox_fork::fork_v2,
            )],
        )
        .route(
            "/sandboxes/{id}/rollback",
            [post(
                changes(TeamKey, "sandbox.rollback"),
                "Put a running sandbox back to a snapshot of it",
                sandbox_rollback::rollback,
            )],
        )
        .may_refuse(&[501])
}

/// Routes of the server itself, for its operator.
fn node_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/nodes", [get(reads(AdminKey), "List the servers that share the database, for admins", nodes::list)])
        .route(
            "/isopod/node/drain",
            [post(
                changes(AdminKey, "node.drain"),
                "Create and resume no sandboxes from now on, and save those that are paused, for admins",
                node_drain::drain,
            )],
        )
        .route(
            "/isopod/node/uncordon",
            [post(
                changes(AdminKey, "node.uncordon"),
                "Create and resume sandboxes again, for admins",
                node_drain::uncordon,
            )],
        )
}

fn team_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/teams", [get(reads(TeamKey), "List the caller's team", teams::list)])
        .route(
            "/api-keys",
            [
                get(reads(TeamKey), "List API keys", api_keys::list),
                post(changes(TeamKey, "api_key.create"), "Create an API key", api_keys::create),
            ],
        )
        .route(
            "/api-keys/{id}/rotate",
            [post(
                changes(TeamKey, "api_key.rotate"),
                "Rotate an API key; the old key stays valid during the overlap",
                api_keys::rotate,
            )],
        )
        .route(
            "/api-keys/{id}",
            [
                patch(changes(TeamKey, "api_key.rename"), "Rename an API key", api_keys::rename),
                delete(changes(TeamKey, "api_key.revoke"), "Revoke an API key", api_keys::revoke),
            ],
        )
        .route(
            "/events/webhooks",
            [
                get(reads(TeamKey), "List webhooks", webhooks::list),
                post(changes(TeamKey, "webhook.create"), "Create a webhook", webhooks::create).may_refuse(&[429]),
            ],
        )
        .route(
            "/events/webhooks/{id}",
            [
                get(reads(TeamKey), "Get a webhook", webhooks::get),
                patch(changes(TeamKey, "webhook.change"), "Update a webhook", webhooks::change).may_refuse(&[429]),
                delete(changes(TeamKey, "webhook.remove"), "Delete a webhook", webhooks::remove),
            ],
        )
        .route(
            "/events/sandboxes",
            [get(reads(TeamKey), "List lifecycle events of the team's sandboxes", events::of_team)],
        )
        .route(
            "/events/sandboxes/{id}",
            [get(reads(TeamKey), "List lifecycle events of a sandbox", events::of_sandbox)],
        )
}

fn template_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/snapshots", [get(reads(TeamKey), "List snapshots with pagination", snapshot_list::list)])
        .route("/templates", [get(reads(TeamKey), "List templates", templates::list)])
        .route("/v2/templates", [get(reads(TeamKey), "List templates", templates::list)])
        .route(
            "/default-templates",
            [get(reads(TeamKey), "List the server's built-in templates", templates::list_default)],
        )
        .route("/templates/aliases/{alias}", [get(reads(TeamKey), "Find a template by name", templates::alias)])
        .route(
            "/templates/tags",
            [
                post(changes(TeamKey, "template.tag"), "Assign tags to a build", template_tags::assign)
                    .may_refuse(&[404]),
                delete(changes(TeamKey, "template.untag"), "Remove tags", template_tags::remove).may_refuse(&[404]),
            ],
        )
        .route(
            "/templates/{id}",
            [
                get(reads(TeamKey), "Get a template", templates::get),
                patch(
                    changes(TeamKey, "template.change"),
                    "Make a template public or private",
                    template_change::change,
                ),
                delete(changes(TeamKey, "template.remove"), "Delete a template or a snapshot", template_change::remove),
            ],
        )
        .route(
            "/v2/templates/{id}",
            [patch(changes(TeamKey, "template.change"), "Make a template public or private", template_change::change)],
        )
        .route("/templates/{id}/tags", [get(reads(TeamKey), "List the tags of a template", template_tags::list)])
        .route(
            "/templates/{id}/tags/count",
            [get(reads(TeamKey), "Count the tags of a template", template_tags::count)],
        )
        .route(
            "/templates/{id}/tags/exists",
            [get(reads(TeamKey), "Check whether a template has a tag", template_tags::exists)],
        )
        .route(
            "/templates/{id}/files/{hash}",
            [get(reads(TeamKey), "Get a link to upload the files of a build", template_files::link)],
        )
        .route(
            "/isopod/uploads/{token}",
            [put(changes(OwnToken, "template.upload"), "Upload files with a link", template_files::upload)
                .never_refuses(404)
                .may_refuse(&[403])],
        )
        .route(
            "/isopod/templates/{id}/image",
            [get(
                reads(TeamKey),
                "Export a template as an image (an OCI layout as a tar archive)",
                template_image::export,
            )
            .may_refuse(&[409, 421, 429])],
        )
        .route(
            "/templates/{id}/builds/{build}/status",
            [get(reads(TeamKey), "Get the status of a build", template_status::status)],
        )
        .route(
            "/templates/{id}/builds/{build}/logs",
            [get(reads(TeamKey), "Get the logs of a build", template_status::logs)],
        )
        .merge(build_request_routes())
        .merge(build_routes())
        .located(Location::Build, "build")
}

/// These routes return ids, but start no build.
fn build_request_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v3/templates",
            [post(
                changes(TeamKey, "template.request_build"),
                "Request a build of a template",
                template_build::request,
            )],
        )
        .route(
            "/v2/templates",
            [post(
                changes(TeamKey, "template.request_build"),
                "Request a build of a template (version 2)",
                template_build::request,
            )],
        )
        .route(
            "/templates",
            [post(
                changes(TeamKey, "template.request_build"),
                "Request a build from a Dockerfile (version 1)",
                template_build::request_legacy,
            )],
        )
        .route(
            "/templates/{id}",
            [post(
                changes(TeamKey, "template.request_build"),
                "Request another build from a Dockerfile (version 1)",
                template_build::rebuild_legacy,
            )],
        )
        .may_refuse(&[404, 409])
}

/// These routes start or cancel a build.
fn build_routes() -> Routes<Arc<App>> {
    Routes::new()
        .route(
            "/v2/templates/{id}/builds/{build}",
            [post(changes(TeamKey, "template.build"), "Start a build", template_build::start).may_refuse(&[501])],
        )
        .route(
            "/templates/{id}/builds/{build}",
            [post(
                changes(TeamKey, "template.build"),
                "Start a build from the requested Dockerfile (version 1)",
                template_build::start_legacy,
            )],
        )
        .route(
            "/isopod/templates/{id}/builds/{build}/context",
            [put(
                changes(TeamKey, "template.send_context"),
                "Send the files that a requested Dockerfile copies (a tar archive)",
                template_context_upload::upload,
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
                post(changes(TeamKey, "volume.create"), "Create a volume", volumes::create).may_refuse(&[409, 501]),
            ],
        )
        .route(
            "/volumes/{id}",
            [
                get(reads(TeamKey), "Get a volume and its token", volumes::get),
                delete(changes(TeamKey, "volume.remove"), "Delete a volume and its content", volumes::remove)
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
                get(reads(OwnToken), "Get an entry of a volume", volume_content::stat),
                patch(
                    changes(OwnToken, "volume.change_entry"),
                    "Change the owner or mode of an entry of a volume",
                    volume_content::change,
                ),
                delete(changes(OwnToken, "volume.remove_entry"), "Delete an entry of a volume", volume_content::remove),
            ],
        )
        .route(
            "/volumecontent/{id}/dir",
            [
                get(reads(OwnToken), "List a directory of a volume", volume_content::list),
                post(
                    changes(OwnToken, "volume.make_directory"),
                    "Create a directory in a volume",
                    volume_content::make_dir,
                )
                .may_refuse(&[507]),
            ],
        )
        .route(
            "/volumecontent/{id}/file",
            [
                get(reads(OwnToken), "Download a file of a volume", volume_content::read),
                put(changes(OwnToken, "volume.write_file"), "Upload a file to a volume", volume_content::write)
                    .may_refuse(&[507]),
            ],
        )
        .may_refuse(&[409, 501])
}
