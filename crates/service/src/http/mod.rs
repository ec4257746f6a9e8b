//! `/api/v1`: the sandbox service over HTTP. Handlers parse and check a request, call the service, and format the
//! result. The audit wraps all of them: no response is sent before its line is written.

mod agents;
mod audit;
mod commands;
mod counted;
mod error;
mod execute;
mod execute_stream;
mod files;
mod fragment_body;
mod fragments;
mod git;
mod health;
mod names;
mod published;
mod quotas;
mod sandbox_create;
mod sandboxes;
mod script_run;
mod short_url_open;
mod sse;
mod start_task;
mod tasks;
mod teams;
mod usage;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use isopod_api::Needs::{AdminKey, AgentKey, Nothing, TeamKey};
use isopod_api::{
    Actions, Audit, Authenticator, Durability, Location, Routes, audited, changes, delete, get, patch, post, put, reads,
};

use crate::Service;

/// The service's API, with its audit.
pub fn router(service: &Arc<Service>, authenticator: &Arc<Authenticator>) -> Router {
    let actions = Actions::of(audited_routes().declared());
    let counted = from_fn_with_state((Arc::clone(service), actions.clone()), counted::counted);
    let audit = Audit { recorder: service.recorder.clone(), actions, durability: Durability::Written };
    let audited_router = audited_routes()
        .into_router(authenticator, Arc::clone(service))
        .layer(counted)
        .layer(from_fn_with_state(audit, audited));
    audited_router.merge(open_routes().into_router(authenticator, Arc::clone(service)))
}

/// Every route of the service.
pub fn routes() -> Routes<Arc<Service>> {
    audited_routes().merge(open_routes())
}

fn audited_routes() -> Routes<Arc<Service>> {
    let records = record_routes().merge(team_routes()).merge(quota_routes());
    sandbox_routes().merge(fragment_routes()).merge(task_routes()).merge(records)
}

/// These routes need no key and are not audited.
fn open_routes() -> Routes<Arc<Service>> {
    Routes::new().route("/api/v1/health", [get(reads(Nothing), "Whether the service works", health::health)]).route(
        "/s/{id}",
        [get(reads(Nothing), "Go to the preview behind a short URL", short_url_open::open)
            .may_refuse(&[410, 421, 429, 500, 503])
            .never_refuses(400)],
    )
}

/// Whatever the service is asked may concern a sandbox on another server, or fail at its backend.
const SERVICE_REFUSALS: &[u16] = &[400, 404, 409, 421, 429, 502, 504];

fn sandbox_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/sandboxes",
            [
                post(
                    changes(AgentKey, "sandbox.create"),
                    "Make a sandbox for an agent and a task",
                    sandbox_create::create,
                ),
                get(
                    reads(AgentKey).audited_as("sandbox.list"),
                    "List sandboxes that are not gone; an admin's key sees all teams'",
                    sandboxes::list,
                ),
            ],
        )
        .route(
            "/api/v1/sandboxes/{id}",
            [
                get(reads(AgentKey).audited_as("sandbox.get"), "A sandbox as it is now", sandboxes::get),
                delete(
                    changes(AgentKey, "sandbox.destroy"),
                    "End a sandbox; also when it is gone already",
                    sandboxes::destroy,
                ),
            ],
        )
        .route(
            "/api/v1/sandboxes/{id}/execute",
            [post(changes(AgentKey, "sandbox.execute"), "Run a command to its end", execute::execute).needs_body()],
        )
        .route(
            "/api/v1/sandboxes/{id}/execute/stream",
            [post(
                changes(AgentKey, "sandbox.execute_stream"),
                "Run a command and follow it by server-sent events",
                execute_stream::execute_stream,
            )
            .needs_body()],
        )
        .route(
            "/api/v1/sandboxes/{id}/files",
            [
                put(changes(AgentKey, "file.write"), "Write a file", files::write),
                get(reads(AgentKey).audited_as("file.read"), "Read a file", files::read),
            ],
        )
        .route(
            "/api/v1/sandboxes/{id}/pause",
            [post(changes(AgentKey, "sandbox.pause"), "Pause a sandbox", sandboxes::pause)],
        )
        .route(
            "/api/v1/sandboxes/{id}/resume",
            [post(changes(AgentKey, "sandbox.resume"), "Let a paused sandbox run again", sandboxes::resume)],
        )
        .merge(git_routes())
        .may_refuse(SERVICE_REFUSALS)
        .located(Location::ServiceSandbox, "id")
}

fn fragment_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/fragments",
            [post(
                changes(AgentKey, "fragment.run"),
                "Run a fragment in a new sandbox: install, write, run the code or start the app",
                fragments::run,
            )],
        )
        .route(
            "/api/v1/fragments/published",
            [
                post(
                    changes(AgentKey, "fragment.publish"),
                    "Give the preview of a sandbox a short URL for a while",
                    published::publish,
                ),
                get(reads(AgentKey).audited_as("fragment.list_published"), "List short URLs", published::list),
            ],
        )
        .route(
            "/api/v1/fragments/published/{id}",
            [delete(
                changes(AgentKey, "fragment.unpublish"),
                "Remove a short URL; the sandbox lives on",
                published::unpublish,
            )],
        )
        .route(
            "/sandbox/run",
            [post(
                changes(AgentKey, "script.run"),
                "Run a script in a sandbox of its own, which ends with it",
                script_run::run,
            )],
        )
        .may_refuse(&[422])
        .may_refuse(SERVICE_REFUSALS)
}

fn git_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/git/clone",
            [post(changes(AgentKey, "git.clone"), "Clone a repository into /workspace/repo", git::clone)],
        )
        .route("/api/v1/git/branch", [post(changes(AgentKey, "git.branch"), "Begin a branch", git::branch)])
        .route(
            "/api/v1/git/commit",
            [post(changes(AgentKey, "git.commit"), "Commit with a conventional message", git::commit)],
        )
        .route("/api/v1/git/push", [post(changes(AgentKey, "git.push"), "Push the branch", git::push)])
        .route(
            "/api/v1/git/{id}/history",
            [get(reads(AgentKey).audited_as("git.history"), "The last twenty commits", git::history)],
        )
        .may_refuse(&[422])
}

fn task_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/agents",
            [
                get(reads(AgentKey).audited_as("agent.list"), "List agents", agents::list),
                post(changes(TeamKey, "agent.create"), "Record an agent", agents::create),
            ],
        )
        .route(
            "/api/v1/agents/{id}",
            [
                get(reads(AgentKey).audited_as("agent.get"), "An agent", agents::get),
                delete(changes(AgentKey, "agent.remove"), "Remove an idle agent", agents::remove),
            ],
        )
        .route(
            "/api/v1/agents/{id}/start-task",
            [post(
                changes(AgentKey, "task.start"),
                "An agent takes a task and gets a sandbox for it",
                start_task::start_task,
            )],
        )
        .route(
            "/api/v1/tasks",
            [
                get(reads(AgentKey).audited_as("task.list"), "List tasks", tasks::list),
                post(changes(AgentKey, "task.create"), "Record a task", tasks::create),
            ],
        )
        .route(
            "/api/v1/tasks/{id}",
            [
                get(reads(AgentKey).audited_as("task.get"), "A task", tasks::get),
                patch(changes(AgentKey, "task.change"), "Note a task's branch or pull request", tasks::change),
            ],
        )
        .route(
            "/api/v1/tasks/{id}/finish",
            [post(changes(AgentKey, "task.finish"), "End a task as completed, with its sandbox", tasks::finish)],
        )
        .route(
            "/api/v1/tasks/{id}/fail",
            [post(changes(AgentKey, "task.fail"), "End a task as failed, with its sandbox", tasks::fail)],
        )
        .route(
            "/api/v1/tasks/{id}/cancel",
            [post(changes(AgentKey, "task.cancel"), "End a task as cancelled, with its sandbox", tasks::cancel)],
        )
        .may_refuse(SERVICE_REFUSALS)
        .located(Location::Named("task"), "id")
}

fn record_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/commands",
            [get(reads(AgentKey).audited_as("command.list"), "What was run, newest first", commands::list)],
        )
        .route(
            "/api/v1/commands/{id}",
            [get(reads(AgentKey).audited_as("command.get"), "A command with what it wrote", commands::get)],
        )
        .route(
            "/api/v1/audit",
            [get(reads(AgentKey).audited_as("audit.list"), "What was done, newest first", audit::list)],
        )
        .route(
            "/api/v1/audit/export",
            [get(
                reads(AdminKey).audited_as("audit.export"),
                "This server's chain as JSON lines, for admins",
                audit::export,
            )],
        )
        .route(
            "/api/v1/audit/verify",
            [get(
                reads(AdminKey).audited_as("audit.verify"),
                "Compute this server's chain again, for admins",
                audit::verify,
            )],
        )
        .route("/api/v1/usage", [get(reads(AgentKey).audited_as("usage.report"), "What was used", usage::report)])
        .route(
            "/api/v1/sse",
            [get(
                reads(AgentKey).audited_as("event.follow"),
                "Follow what happens, by server-sent events",
                sse::follow,
            )
            .may_refuse(&[429])],
        )
}

fn team_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route("/api/v1/teams", [get(reads(AdminKey).audited_as("team.list"), "List teams, for admins", teams::list)])
        .route(
            "/api/v1/teams/{id}",
            [put(changes(AdminKey, "team.ensure"), "Create the team if it doesn't exist, for admins", teams::ensure)
                .never_refuses(404)],
        )
        .route(
            "/api/v1/teams/{id}/members/{member}",
            [
                put(changes(AdminKey, "team.add_member"), "Put someone into a team, for admins", teams::add_member),
                delete(
                    changes(AdminKey, "team.remove_member"),
                    "Take someone out of a team, for admins",
                    teams::remove_member,
                ),
            ],
        )
}

fn quota_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/quota",
            [get(reads(AgentKey).audited_as("quota.get"), "The limits of your team, and what it uses", quotas::own)],
        )
        .route(
            "/api/v1/quotas",
            [get(reads(AdminKey).audited_as("quota.list"), "The limits of all teams, for admins", quotas::list)],
        )
        .route(
            "/api/v1/tiers",
            [get(reads(AdminKey).audited_as("tier.list"), "The tiers of the settings, for admins", quotas::tiers)],
        )
        .route(
            "/api/v1/teams/{id}/quota",
            [
                get(reads(AdminKey).audited_as("team.get_quota"), "The limits of a team, for admins", quotas::get),
                put(
                    changes(AdminKey, "team.set_quota"),
                    "Give a team a tier or limits of its own, for admins",
                    quotas::set,
                ),
                delete(
                    changes(AdminKey, "team.reset_quota"),
                    "Take a team's tier and limits away, for admins",
                    quotas::reset,
                ),
            ],
        )
}
