//! `/dashboard/sandboxes/{id}`: one sandbox, with its resources, its events, and what can be done to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Form, Path};
use axum::response::{IntoResponse as _, Response};
use http::Method;
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads, refuses, submit};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::sandboxes::metadata;
use crate::Dashboard;
use crate::api::encode;
use crate::failure::Failure;
use crate::guest::{Details, Guest};
use crate::page::{Page, Section, csrf};
use crate::show;
use crate::visit::Visit;

/// How far "Extend" moves the end, from now.
const EXTENSIONS: [(u32, &str); 4] = [(900, "15 min"), (3600, "1 h"), (14_400, "4 h"), (86_400, "24 h")];
const EVENTS: u32 = 12;

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard/sandboxes/{id}", [page(reads(Session), show)])
        .route("/dashboard/sandboxes/{id}/metrics", [page(reads(Session), metrics)])
        .route("/dashboard/sandboxes/{id}/pause", [submit(refuses(Session), pause)])
        .route("/dashboard/sandboxes/{id}/resume", [submit(refuses(Session), resume)])
        .route("/dashboard/sandboxes/{id}/extend", [submit(refuses(Session), extend)])
        .route("/dashboard/sandboxes/{id}/snapshot", [submit(refuses(Session), snapshot)])
        .route("/dashboard/sandboxes/{id}/fork", [submit(refuses(Session), fork)])
        .route("/dashboard/sandboxes/{id}/kill", [submit(refuses(Session), kill)])
}

/// The tabs of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Details,
    Terminal,
    Files,
    Logs,
    Processes,
    Ports,
}

impl Tab {
    const ALL: [(Self, &str, &str); 6] = [
        (Self::Details, "Details", ""),
        (Self::Terminal, "Terminal", "/terminal"),
        (Self::Files, "Files", "/files"),
        (Self::Logs, "Logs", "/logs"),
        (Self::Processes, "Processes", "/processes"),
        (Self::Ports, "Ports", "/ports"),
    ];
}

/// The path of a sandbox's pages.
pub(super) fn path_of(id: &str) -> String {
    format!("/dashboard/sandboxes/{}", encode(id))
}

/// The head of all pages of a sandbox.
pub(super) fn head(visit: &Visit, id: &str, details: &Details, current: Tab) -> Markup {
    let path = path_of(id);
    html! {
        p .where { a href="/dashboard/sandboxes" { "Sandboxes" } " /" }
        div #head .title data-part {
            h1 .mono { (id) }
            (show::state(&details.state))
            (actions(visit, &path, details))
        }
        nav .tabs aria-label="Sandbox" {
            @for (tab, name, end) in Tab::ALL {
                a href={ (path) (end) } aria-current=[(tab == current).then_some("page")] { (name) }
            }
        }
    }
}

fn actions(visit: &Visit, path: &str, details: &Details) -> Markup {
    let button = |action: &str, name: &str, class: &str, question: Option<&str>| {
        html! {
            form method="post" action={ (path) "/" (action) } {
                (csrf(visit))
                button type="submit" class=(class) data-confirm=[question] { (name) }
            }
        }
    };
    html! {
        div .actions {
            @if details.state == "paused" { (button("resume", "Resume", "primary", None)) }
            @else {
                (button("pause", "Pause", "", None))
                form method="post" action={ (path) "/extend" } {
                    (csrf(visit))
                    label .visually-hidden for="seconds" { "Time from now" }
                    select #seconds name="seconds" {
                        @for (seconds, name) in EXTENSIONS { option value=(seconds) { (name) } }
                    }
                    button type="submit" { "Extend" }
                }
                (button("snapshot", "Snapshot", "", None))
                (button("fork", "Fork", "", None))
            }
            (button("kill", "Kill", "danger", Some("End this sandbox? Its files and processes are lost.")))
        }
    }
}

async fn show(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let events: Value =
        visit.api.get(&format!("/events/sandboxes/{}?limit={EVENTS}&orderAsc=false", encode(&id))).await?;
    let content = html! {
        (head(&visit, &id, &guest.details, Tab::Details))
        div .wide {
            section .card { h2 { "Details" } (facts(&guest.details)) }
            section .card {
                h2 { "Events" }
                div #events data-part { (timeline(&events)) }
            }
        }
        div .wide {
            section .card { h2 { "CPU, % of one core" } div .plot data-plot="cpu" role="img" aria-label="CPU usage over time" {} }
            section .card { h2 { "Memory, MiB" } div .plot data-plot="memory" role="img" aria-label="Memory usage over time" {} }
        }
    };
    let page = Page::new(id.clone(), Section::Sandboxes)
        .style("vendor/uplot.css")
        .script("vendor/uplot.js")
        .script("plots.js")
        .live("/dashboard/live/sandboxes");
    Ok(page.show(&visit, content))
}

fn facts(details: &Details) -> Markup {
    let text = |name: &str| details.rest.get(name).and_then(Value::as_str).unwrap_or_default();
    let lifecycle = details.rest.get("lifecycle").cloned().unwrap_or_default();
    let network = details.rest.get("network");
    html! {
        dl #facts .facts data-part {
            dt { "Template" } dd { (details.alias.as_deref().unwrap_or(&details.template)) }
            dt { "Started" } dd { (show::time(&details.started_at)) }
            dt { "Ends" }
            dd {
                @if details.state == "paused" { "not while it is paused" }
                @else {
                    (show::time(&details.end_at))
                    @if lifecycle["onTimeout"] == "pause" { " (then it pauses)" }
                }
            }
            dt { "Size" }
            dd { (details.cpu_count) " CPU, " (details.memory_mb) " MiB memory" @if details.disk_size_mb > 0 { ", " (details.disk_size_mb) " MiB disk" } }
            dt { "Metadata" }
            dd { @if details.metadata.is_empty() { "none" } @else { (metadata(&details.metadata)) } }
            dt { "Internet" }
            dd { @if details.rest.get("allowInternetAccess") == Some(&Value::Bool(false)) { "not allowed" } @else { "allowed" } }
            @if let Some(network) = network { dt { "Network rules" } dd { code { (network.to_string()) } } }
            dt { "Resumes by itself" } dd { @if lifecycle["autoResume"] == true { "on the next request" } @else { "no" } }
            dt { "Guest" } dd { "envd " (text("envdVersion")) }
        }
    }
}

fn timeline(events: &Value) -> Markup {
    let events = events.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    html! {
        @if events.is_empty() { (show::empty("No events yet.")) } @else {
            table { tbody {
                @for event in events {
                    tr { td { (text(event, "type")) } td .number { (show::time(&text(event, "timestamp"))) } }
                }
            } }
        }
    }
}

/// The samples of the last hours, for the plots.
async fn metrics(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    let samples: Value = visit.api.get(&format!("/sandboxes/{}/metrics", encode(&id))).await?;
    Ok(Json(samples).into_response())
}

async fn pause(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    act(&visit, &id, "pause", json!({})).await?;
    Ok(visit.done(&path_of(&id), "Paused. It keeps its files, and its processes if this server can save memory."))
}

async fn resume(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    act(&visit, &id, "resume", json!({ "timeout": 3600 })).await?;
    Ok(visit.done(&path_of(&id), "Resumed, for an hour."))
}

#[derive(Deserialize)]
struct Extend {
    seconds: u32,
}

async fn extend(visit: Visit, Path(id): Path<String>, Form(form): Form<Extend>) -> Result<Response, Failure> {
    act(&visit, &id, "timeout", json!({ "timeout": form.seconds })).await?;
    Ok(visit.done(&path_of(&id), "Its end is moved."))
}

async fn snapshot(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    let made = act(&visit, &id, "snapshots", json!({})).await?;
    let name = made["snapshotID"].as_str().unwrap_or_default();
    Ok(visit.done(&path_of(&id), &format!("Snapshot {name} is taken.")))
}

async fn fork(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    let copies = act(&visit, &id, "fork", json!({ "count": 1, "timeout": 3600 })).await?;
    let copy = &copies[0];
    match copy["sandbox"]["sandboxID"].as_str() {
        Some(copy) => Ok(visit.done(&path_of(copy), &format!("This is a copy of {id}."))),
        None => {
            let reason = copy["error"]["message"].as_str().unwrap_or("the copy could not be made");
            Err(Failure::new(http::StatusCode::BAD_GATEWAY, reason))
        }
    }
}

async fn kill(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    visit.api.change(Method::DELETE, &format!("/sandboxes/{}", encode(&id)), None).await?;
    Ok(visit.done("/dashboard/sandboxes", &format!("{id} is gone.")))
}

async fn act(visit: &Visit, id: &str, verb: &str, body: Value) -> Result<Value, Failure> {
    visit.api.change(Method::POST, &format!("/sandboxes/{}/{verb}", encode(id)), Some(body)).await
}
