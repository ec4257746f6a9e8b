//! `/dashboard/sandboxes`: the team's sandboxes, with filters, a search and pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::Query;
use axum::response::Response;
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads};
use maud::{Markup, html};
use serde::Deserialize;

use crate::Dashboard;
use crate::api::{Api, encode};
use crate::failure::Failure;
use crate::page::{Page, Section};
use crate::show;
use crate::visit::Visit;

/// How many the API returns at once.
const PAGE: usize = 100;
/// A search looks at this many sandboxes, the newest ones.
const MAX_SEARCHED: usize = 5000;

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new().route("/dashboard/sandboxes", [page(reads(Session), list)])
}

/// A sandbox as the API lists it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "templateID")]
    template: String,
    #[serde(default)]
    alias: String,
    started_at: String,
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    state: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct Wanted {
    #[serde(default)]
    q: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    after: String,
}

struct Found {
    sandboxes: Vec<Listed>,
    /// Continues the list.
    next: Option<String>,
    running: Option<String>,
    /// Whether a search ended before it had seen everything.
    is_cut: bool,
}

async fn list(visit: Visit, Query(wanted): Query<Wanted>) -> Result<Response, Failure> {
    let found = if wanted.q.trim().is_empty() {
        one_page(&visit.api, &wanted.state, &wanted.after).await?
    } else {
        search(&visit.api, &wanted).await?
    };
    let content = html! {
        div .title { h1 { "Sandboxes" } (count(&found)) }
        (filters(&wanted))
        div #sandboxes data-part {
            @if found.sandboxes.is_empty() { (show::empty(nothing(&wanted))) } @else { (table(&found.sandboxes)) }
            (pages(&wanted, &found))
        }
    };
    Ok(Page::new("Sandboxes", Section::Sandboxes).live("/dashboard/live/sandboxes").show(&visit, content))
}

async fn one_page(api: &Api, state: &str, after: &str) -> Result<Found, Failure> {
    let mut path = format!("/v2/sandboxes?limit={PAGE}");
    for (name, value) in [("state", state), ("nextToken", after)] {
        if !value.is_empty() {
            let _ = write!(path, "&{name}={}", encode(value));
        }
    }
    let answer = api.get_with_headers::<Vec<Listed>>(&path).await?;
    let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (next, running) = (header("x-next-token"), header("x-total-running"));
    Ok(Found { sandboxes: answer.value, next, running, is_cut: false })
}

/// The API can't search, so this goes through its pages.
async fn search(api: &Api, wanted: &Wanted) -> Result<Found, Failure> {
    let words: Vec<String> = wanted.q.split_whitespace().map(str::to_lowercase).collect();
    let (mut sandboxes, mut after, mut seen) = (Vec::new(), String::new(), 0);
    loop {
        let page = one_page(api, &wanted.state, &after).await?;
        seen += page.sandboxes.len();
        sandboxes.extend(page.sandboxes.into_iter().filter(|sandbox| sandbox.has_all(&words)));
        match page.next {
            Some(next) if seen < MAX_SEARCHED => after = next,
            rest => return Ok(Found { sandboxes, next: None, running: None, is_cut: rest.is_some() }),
        }
    }
}

impl Listed {
    fn has_all(&self, words: &[String]) -> bool {
        let has = |text: &str, word: &str| text.to_lowercase().contains(word);
        words.iter().all(|word| {
            [&self.id, &self.template, &self.alias].iter().any(|text| has(text, word))
                || self.metadata.iter().any(|(key, value)| has(&format!("{key}={value}"), word))
        })
    }

    fn shown_template(&self) -> &str {
        if self.alias.is_empty() { &self.template } else { &self.alias }
    }
}

fn count(found: &Found) -> Markup {
    let text = match &found.running {
        Some(running) => format!("{running} running"),
        None => format!("{} found", found.sandboxes.len()),
    };
    html! { span #count .count data-part { (text) } }
}

fn filters(wanted: &Wanted) -> Markup {
    let states = [("", "Running and paused"), ("running", "Running"), ("paused", "Paused")];
    html! {
        form .filters role="search" method="get" action="/dashboard/sandboxes" {
            label .visually-hidden for="q" { "Search sandboxes" }
            input #q type="search" name="q" value=(wanted.q) placeholder="Search id, template, metadata" data-search
                autocomplete="off" spellcheck="false";
            label .visually-hidden for="state" { "State" }
            select #state name="state" data-submit {
                @for (value, name) in states {
                    option value=(value) selected[value == wanted.state] { (name) }
                }
            }
            button type="submit" { "Search" }
        }
    }
}

fn nothing(wanted: &Wanted) -> &'static str {
    if wanted.q.trim().is_empty() && wanted.state.is_empty() {
        "No sandboxes. They appear here as soon as a program creates one."
    } else {
        "No sandbox matches."
    }
}

fn table(sandboxes: &[Listed]) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Sandboxes" {
            table {
                thead { tr {
                    th scope="col" { "Sandbox" } th scope="col" { "State" } th scope="col" { "Template" }
                    th scope="col" { "Metadata" } th scope="col" { "Size" } th scope="col" { "Started" }
                    th scope="col" { "Ends" }
                } }
                tbody { @for sandbox in sandboxes { (row(sandbox)) } }
            }
        }
    }
}

fn row(sandbox: &Listed) -> Markup {
    html! {
        tr {
            td { a .id href={ "/dashboard/sandboxes/" (encode(&sandbox.id)) } { (sandbox.id) } }
            td { (show::state(&sandbox.state)) }
            td .text { (sandbox.shown_template()) }
            td { (metadata(&sandbox.metadata)) }
            td .number { (sandbox.cpu_count) " CPU, " (sandbox.memory_mb) " MiB" }
            td .number { (show::time(&sandbox.started_at)) }
            td .number { @if sandbox.state == "paused" { "—" } @else { (show::time(&sandbox.end_at)) } }
        }
    }
}

/// The pairs as small labels.
pub(super) fn metadata(pairs: &BTreeMap<String, String>) -> Markup {
    html! {
        @for (key, value) in pairs {
            span .tag title={ (key) "=" (value) } { b { (key) } " " (value) }
        }
    }
}

fn pages(wanted: &Wanted, found: &Found) -> Markup {
    html! {
        @if found.is_cut { p .hint { "The search saw only the newest " (MAX_SEARCHED) " sandboxes." } }
        @if !wanted.after.is_empty() || found.next.is_some() {
            nav .pages aria-label="Pages" {
                @if !wanted.after.is_empty() { a href={ "?state=" (encode(&wanted.state)) } { "First page" } }
                @if let Some(next) = &found.next {
                    a href={ "?state=" (encode(&wanted.state)) "&after=" (encode(next)) } { "Next page" }
                }
            }
        }
    }
}
