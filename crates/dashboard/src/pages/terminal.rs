//! `/dashboard/sandboxes/{id}/terminal`: a terminal. A script speaks to the guest's process service through the route
//! `rpc`, which passes streams on without reading them. Terminals outlive the server, so the script connects again.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::Response;
use http::{Method, StatusCode, header};
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads, refuses, submit};
use maud::html;

use super::processes::{Process, processes_of};
use super::sandbox::{Tab, head, path_of};
use crate::Dashboard;
use crate::failure::Failure;
use crate::guest::{GUEST, Guest};
use crate::page::{Page, Section};
use crate::visit::Visit;

/// Terminals of the dashboard have tags that begin with this.
const TAG: &str = "dashboard-terminal";
/// The methods of the guest that the script needs.
const METHODS: [&str; 5] = ["Start", "Connect", "SendInput", "Update", "SendSignal"];
/// The headers of the protocol.
const PASSED: [&str; 3] = ["content-type", "connect-protocol-version", "keepalive-ping-interval"];

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard/sandboxes/{id}/terminal", [page(reads(Session), show)])
        .route("/dashboard/sandboxes/{id}/rpc/{method}", [submit(refuses(Session), rpc)])
}

/// Whether a process is a terminal of the dashboard.
pub(super) fn is_ours(tag: Option<&str>) -> bool {
    tag.is_some_and(|tag| tag.starts_with(TAG))
}

async fn show(visit: Visit, Path(id): Path<String>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let open: Vec<Process> =
        processes_of(&guest).await?.processes.into_iter().filter(|process| is_ours(process.tag.as_deref())).collect();
    let path = path_of(&id);
    let content = html! {
        (head(&visit, &id, &guest.details, Tab::Terminal))
        @if guest.details.state == "paused" {
            p .notice { "The sandbox is paused. Resume it to open a terminal." }
        } @else {
            div .terminal-bar {
                span #terminal-state .state data-kind="busy" role="status" { "connecting" }
                span #terminal-title .muted {}
                span .spacer {}
                @for process in &open {
                    a .button href={ (path) "/terminal#" (process.pid) } data-terminal=(process.pid) { "Terminal " (process.pid) }
                }
                button type="button" data-terminal="new" { "New terminal" }
            }
            div #terminal .terminal-box data-rpc={ (path) "/rpc" } data-tag=(TAG) {}
            p .hint {
                "Copy with Ctrl+Shift+C, paste with Ctrl+Shift+V. The terminal runs on when you leave this page; come back to it \
                 by its button. " kbd { "Ctrl+Shift+Escape" } " leaves the terminal with the keyboard."
            }
        }
    };
    let page = Page::new(format!("Terminal of {id}"), Section::Sandboxes)
        .style("vendor/xterm.css")
        .style("terminal.css")
        .script("vendor/xterm.js")
        .script("vendor/addon-fit.js")
        .script("terminal.js");
    Ok(page.show(&visit, content))
}

/// Passes one call on to the guest, and its answer back.
async fn rpc(visit: Visit, Path((id, method)): Path<(String, String)>, request: Request) -> Result<Response, Failure> {
    if !METHODS.contains(&method.as_str()) {
        return Err(Failure::new(StatusCode::NOT_FOUND, "the dashboard doesn't call this method"));
    }
    let guest = Guest::find(&visit.api, &id).await?;
    let (parts, body) = request.into_parts();
    let mut inside = http::Request::new(body);
    *inside.method_mut() = Method::POST;
    *inside.uri_mut() =
        format!("/process.Process/{method}").parse().map_err(|_| Failure::bad_request("not a method"))?;
    for name in PASSED {
        if let Some(value) = parts.headers.get(name) {
            inside.headers_mut().insert(name, value.clone());
        }
    }
    // They tell the edge how far the browser has read, so that no output is lost or repeated when it connects again.
    *inside.extensions_mut() = parts.extensions;
    Ok(plain(guest.send(GUEST, inside).await?))
}

/// Only the status, the type and the bytes. A page of ours reads them as data.
fn plain(answer: http::Response<Body>) -> Response {
    let (head, body) = answer.into_parts();
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE)
        && kind.as_bytes().starts_with(b"application/")
    {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    response.extensions_mut().extend(head.extensions);
    response
}
