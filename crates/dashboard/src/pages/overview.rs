//! `/dashboard`: what runs, and how the server is. What only admins may see is left out for others.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::figures::Figures;
use crate::Dashboard;
use crate::failure::Failure;
use crate::page::{Page, Section};
use crate::session::Role;
use crate::show;
use crate::visit::Visit;

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard", [page(reads(Session), show)])
        .route("/dashboard/figures", [page(reads(Session), figures)])
}

/// The machine, as `GET /isopod/host` describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Host {
    cpus: u64,
    load: [f64; 3],
    memory_total: u64,
    memory_available: u64,
    disk_total: u64,
    disk_available: u64,
}

async fn show(visit: Visit) -> Result<Response, Failure> {
    let content = match visit.session.role {
        Role::Admin => for_admin(&visit).await?,
        Role::Team => for_team(&visit).await?,
        Role::Limited => html! {
            h1 { "Overview" }
            p .notice { "You have signed in with a key of a small scope. Most pages need a key of the whole team." }
        },
    };
    let page = Page::new("Overview", Section::Overview).style("vendor/uplot.css").script("vendor/uplot.js");
    Ok(page.script("overview.js").refresh(2).show(&visit, content))
}

async fn for_admin(visit: &Visit) -> Result<Markup, Failure> {
    let figures = Figures::parse(&visit.api.get_text("/metrics").await?);
    let host: Host = visit.api.get("/isopod/host").await?;
    let nodes: Value = visit.api.get("/nodes").await?;
    let sandboxes = |state| figures.sum_of("isopod_sandboxes", &[("state", state)]);
    Ok(html! {
        h1 { "Overview" }
        p .hint { "All teams of this server." }
        div #figures .cards data-part {
            (card("Running", &whole(sandboxes("running"))))
            (card("Paused", &whole(sandboxes("paused"))))
            (card("Created", &whole(figures.sum_of("isopod_create_seconds_count", &[]))))
            (card("Create time, average", &average(&figures)))
            (card("Create failures", &whole(figures.sum_of("isopod_create_failures_total", &[]))))
        }
        div .wide {
            section .card { h2 { "Creates per second" } div .plot data-figure="creates" role="img" aria-label="Creates per second over time" {} }
            section .card { h2 { "Create time, ms" } div .plot data-figure="latency" role="img" aria-label="Time of a create over time" {} }
        }
        div #host .wide data-part {
            section .card {
                h2 { "Host" }
                dl .facts {
                    dt { "Load" } dd { (format!("{:.2}", host.load[0])) " on " (host.cpus) " CPUs" (gauge("Load", host.load[0], number(host.cpus))) }
                    dt { "Memory" } dd { (used("Memory", host.memory_total, host.memory_available)) }
                    dt { "Disk" } dd { (used("Disk", host.disk_total, host.disk_available)) }
                }
            }
            section .card { h2 { "Pools" } (pools(&figures)) }
            section .card { h2 { "Servers" } (servers(&nodes)) }
        }
    })
}

/// A team sees its own sandboxes, but not the server.
async fn for_team(visit: &Visit) -> Result<Markup, Failure> {
    let answer = visit.api.get_with_headers::<Vec<Value>>("/v2/sandboxes?limit=100").await?;
    let running = answer.headers.get("x-total-running").and_then(|value| value.to_str().ok()).unwrap_or("–").to_owned();
    let paused = answer.value.iter().filter(|sandbox| sandbox["state"] == "paused").count();
    let quota: Value = visit.api.get("/api/v1/quota").await.unwrap_or_default();
    let events: Vec<Value> = visit.api.get("/events/sandboxes?limit=15&orderAsc=false").await?;
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    Ok(html! {
        h1 { "Overview" }
        div #figures .cards data-part {
            (card("Running", &running))
            (card("Paused, of the newest 100", &paused.to_string()))
            @if let Some(tier) = quota["tier"].as_str() { (card("Tier", tier)) }
        }
        section .card {
            h2 { "Latest events" }
            div #events data-part {
                @if events.is_empty() { (show::empty("Nothing has happened yet.")) } @else {
                    table { tbody { @for event in &events { tr {
                        td { a .id href={ "/dashboard/sandboxes/" (text(event, "sandboxId")) } { (text(event, "sandboxId")) } }
                        td { (text(event, "type")) }
                        td .number { (show::time(&text(event, "timestamp"))) }
                    } } } }
                }
            }
        }
    })
}

/// The numbers behind the plots. `null` for those who may not see them.
async fn figures(visit: Visit) -> Result<Response, Failure> {
    if visit.session.role != Role::Admin {
        return Ok(Json(Value::Null).into_response());
    }
    let figures = Figures::parse(&visit.api.get_text("/metrics").await?);
    let of = |name| figures.sum_of(name, &[]);
    let told = json!({ "creates": of("isopod_create_seconds_count"), "seconds": of("isopod_create_seconds_sum") });
    Ok(Json(told).into_response())
}

fn card(name: &str, figure: &str) -> Markup {
    html! { section .card { h2 { (name) } div .figure { (figure) } } }
}

fn average(figures: &Figures) -> String {
    let count = figures.sum_of("isopod_create_seconds_count", &[]);
    if count < 1.0 {
        return "–".to_owned();
    }
    format!("{:.1} ms", figures.sum_of("isopod_create_seconds_sum", &[]) * 1000.0 / count)
}

fn pools(figures: &Figures) -> Markup {
    let templates = figures.labels_of("isopod_pool_sandboxes", "template");
    let count = |name, template: &str, stage| whole(figures.sum_of(name, &[("template", template), ("stage", stage)]));
    html! {
        @if templates.is_empty() { (show::empty("No pool.")) } @else {
            table {
                thead { tr { th scope="col" { "Template" } th scope="col" { "Ready" } th scope="col" { "Prepared" } } }
                tbody { @for template in &templates { tr {
                    td .text { (template) }
                    @for stage in ["ready", "prepared"] {
                        td .number { (count("isopod_pool_sandboxes", template, stage)) " of " (count("isopod_pool_size", template, stage)) }
                    }
                } } }
            }
        }
    }
}

fn servers(nodes: &Value) -> Markup {
    let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        table { tbody { @for node in nodes { tr {
            td .text { (node["name"].as_str().unwrap_or_default()) }
            td { (show::state(node["status"].as_str().unwrap_or_default())) }
            td .number { (node["sandboxCount"]) " running" }
            td .muted { (node["version"].as_str().unwrap_or_default()) }
        } } } }
    }
}

fn used(name: &str, total: u64, available: u64) -> Markup {
    let taken = total.saturating_sub(available);
    html! { (show::bytes(taken)) " of " (show::bytes(total)) (gauge(name, number(taken), number(total))) }
}

fn gauge(name: &str, value: f64, most: f64) -> Markup {
    html! { meter aria-label=(name) min="0" max=(most) high=(most * 0.85) low=(most * 0.6) optimum="0" value=(value.min(most)) {} }
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

#[expect(clippy::cast_precision_loss, reason = "a gauge shows three digits")]
fn number(count: u64) -> f64 {
    count as f64
}
