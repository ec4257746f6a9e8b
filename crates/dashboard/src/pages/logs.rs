//! `/dashboard/sandboxes/{id}/logs`: what a sandbox printed, with a search and levels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Path, Query};
use axum::response::Response;
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads};
use maud::{Markup, html};
use serde::Deserialize;

use super::sandbox::{Tab, head, path_of};
use crate::Dashboard;
use crate::api::encode;
use crate::failure::Failure;
use crate::guest::Guest;
use crate::page::{Page, Section};
use crate::show;
use crate::visit::Visit;

/// The newest lines.
const LINES: u32 = 500;
const LEVELS: [(&str, &str); 4] =
    [("", "All levels"), ("info", "Info and above"), ("warn", "Warnings"), ("error", "Errors")];

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new().route("/dashboard/sandboxes/{id}/logs", [page(reads(Session), list)])
}

#[derive(Debug, Deserialize)]
struct Wanted {
    #[serde(default)]
    q: String,
    #[serde(default)]
    level: String,
}

#[derive(Debug, Deserialize)]
struct Logs {
    logs: Vec<Line>,
}

#[derive(Debug, Deserialize)]
struct Line {
    timestamp: String,
    level: String,
    message: String,
    #[serde(default)]
    fields: BTreeMap<String, String>,
}

async fn list(visit: Visit, Path(id): Path<String>, Query(wanted): Query<Wanted>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let mut path = format!("/v2/sandboxes/{}/logs?direction=backward&limit={LINES}", encode(&id));
    for (name, value) in [("level", &wanted.level), ("search", &wanted.q)] {
        if !value.is_empty() {
            let _ = write!(path, "&{name}={}", encode(value));
        }
    }
    let mut found: Logs = visit.api.get(&path).await?;
    found.logs.reverse();
    let content = html! {
        (head(&visit, &id, &guest.details, Tab::Logs))
        (filters(&path_of(&id), &wanted))
        div #log data-part {
            @if found.logs.is_empty() { (show::empty("No lines. What programs print appears here.")) }
            @else { div .log tabindex="0" role="log" aria-label="Log lines" { @for line in &found.logs { (row(line)) } } }
        }
    };
    Ok(Page::new(format!("Logs of {id}"), Section::Sandboxes).refresh(3).show(&visit, content))
}

fn filters(path: &str, wanted: &Wanted) -> Markup {
    html! {
        form .filters role="search" method="get" action={ (path) "/logs" } {
            label .visually-hidden for="q" { "Search the log" }
            input #q type="search" name="q" value=(wanted.q) placeholder="Search the log" data-search autocomplete="off";
            label .visually-hidden for="level" { "Level" }
            select #level name="level" data-submit {
                @for (value, name) in LEVELS { option value=(value) selected[value == wanted.level] { (name) } }
            }
            button type="submit" { "Search" }
        }
    }
}

fn row(line: &Line) -> Markup {
    // The day is in the title.
    let clock = line.timestamp.get(11..19).unwrap_or(&line.timestamp);
    html! {
        div data-level=(line.level) {
            span .clock title=(line.timestamp) { (clock) }
            span .level { (line.level) }
            span .line {
                (plain(&line.message))
                @for (name, value) in &line.fields { " " span .tag { b { (name) } " " (plain(value)) } }
            }
        }
    }
}

/// Without the escape sequences of terminals, and with other control characters made visible.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' if rest.peek() == Some(&'[') => {
                rest.next();
                // Parameters, up to the letter that ends the sequence.
                for character in rest.by_ref() {
                    if ('\u{40}'..='\u{7e}').contains(&character) {
                        break;
                    }
                }
            }
            '\n' | '\t' => shown.push(character),
            '\r' => {}
            // Also those that turn the direction of what follows.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => shown.push('\u{fffd}'),
            character if character.is_control() => shown.push('\u{fffd}'),
            character => shown.push(character),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_programs_do_nothing() {
        assert_eq!(plain("\u{1b}[31mred\u{1b}[0m\r\n"), "red\n");
        assert_eq!(plain("\u{1b}]0;title\u{7}"), "\u{fffd}]0;title\u{fffd}");
        assert_eq!(plain("a\u{202e}b\u{0}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(plain("\u{1b}["), "");
    }
}
