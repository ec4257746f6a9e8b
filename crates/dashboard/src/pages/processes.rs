//! `/dashboard/sandboxes/{id}/processes`: what clients have started in a sandbox.

use std::sync::Arc;

use axum::extract::{Form, Path};
use axum::response::Response;
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads, refuses, submit};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::logs::plain;
use super::sandbox::{Tab, head, path_of};
use super::terminal;
use crate::Dashboard;
use crate::failure::Failure;
use crate::guest::Guest;
use crate::page::{Page, Section, csrf};
use crate::show;
use crate::visit::Visit;

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard/sandboxes/{id}/processes", [page(reads(Session), list)])
        .route("/dashboard/sandboxes/{id}/signal", [submit(refuses(Session), signal)])
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Processes {
    #[serde(default)]
    pub(super) processes: Vec<Process>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Process {
    #[serde(default)]
    config: Config,
    pub(super) pid: u32,
    #[serde(default)]
    pub(super) tag: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    cwd: Option<String>,
}

pub(super) async fn processes_of(guest: &Guest) -> Result<Processes, Failure> {
    if guest.details.state == "paused" {
        return Ok(Processes::default());
    }
    guest.call("process.Process/List", json!({})).await
}

async fn list(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let found = processes_of(&guest).await?;
    let content = html! {
        (head(&visit, &id, &guest.details, Tab::Processes))
        p .hint { "Commands and terminals that clients started, and that still run. Programs started by them are not listed." }
        div #processes data-part {
            @if found.processes.is_empty() { (show::empty("No client runs a command.")) }
            @else { (table(&visit, &path_of(&id), &found.processes)) }
        }
    };
    Ok(Page::new(format!("Processes of {id}"), Section::Sandboxes).refresh(3).show(&visit, content))
}

fn table(visit: &Visit, path: &str, processes: &[Process]) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Processes" {
            table {
                thead { tr {
                    th scope="col" { "Pid" } th scope="col" { "Command" } th scope="col" { "Directory" } th scope="col" { "Tag" }
                    th scope="col" { span .visually-hidden { "Actions" } }
                } }
                tbody { @for process in processes { (row(visit, path, process)) } }
            }
        }
    }
}

fn row(visit: &Visit, path: &str, process: &Process) -> Markup {
    let config = &process.config;
    let command =
        std::iter::once(&config.cmd).chain(&config.args).map(|word| plain(word)).collect::<Vec<_>>().join(" ");
    let is_terminal = terminal::is_ours(process.tag.as_deref());
    html! {
        tr {
            td .number { (process.pid) }
            td .text { code { (command) } }
            td .text { (config.cwd.as_deref().unwrap_or_default()) }
            td .text { (process.tag.as_deref().unwrap_or_default()) }
            td .actions {
                @if is_terminal { a href={ (path) "/terminal#" (process.pid) } { "Open" } " " }
                form method="post" action={ (path) "/signal" } {
                    (csrf(visit))
                    input type="hidden" name="pid" value=(process.pid);
                    button type="submit" name="signal" value="SIGNAL_SIGTERM" { "Terminate" } " "
                    button .danger type="submit" name="signal" value="SIGNAL_SIGKILL" { "Kill" }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Signal {
    pid: u32,
    signal: String,
}

async fn signal(visit: Visit, Path(id): Path<String>, Form(form): Form<Signal>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let body = json!({ "process": { "pid": form.pid }, "signal": form.signal });
    guest.call::<Value>("process.Process/SendSignal", body).await?;
    Ok(visit.done(&format!("{}/processes", path_of(&id)), &format!("Sent to process {}.", form.pid)))
}
