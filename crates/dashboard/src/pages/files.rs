//! `/dashboard/sandboxes/{id}/files`: the files of a sandbox. What they contain is shown as text or as a picture, and never
//! as a page of ours: raw answers carry a policy that runs nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Form, Path, Query, Request};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads, refuses, submit};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::file_view::{image_type, view};
use super::sandbox::{Tab, head, path_of};
use crate::Dashboard;
use crate::api::{encode, read};
use crate::failure::Failure;
use crate::guest::{GUEST, Guest};
use crate::page::{Page, Section, csrf};
use crate::show;
use crate::visit::Visit;

/// Where a sandbox's user is at home.
const HOME: &str = "/home/user";
/// What a raw answer may do if somebody opens it as a page: nothing.
const INERT: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard/sandboxes/{id}/files", [page(reads(Session), browse)])
        .route("/dashboard/sandboxes/{id}/files/view", [page(reads(Session), view)])
        .route("/dashboard/sandboxes/{id}/files/raw", [page(reads(Session), raw)])
        .route("/dashboard/sandboxes/{id}/files/upload", [submit(refuses(Session), upload)])
        .route("/dashboard/sandboxes/{id}/files/folder", [submit(refuses(Session), make_folder)])
        .route("/dashboard/sandboxes/{id}/files/remove", [submit(refuses(Session), remove)])
        .route("/dashboard/sandboxes/{id}/files/rename", [submit(refuses(Session), rename)])
}

#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    pub(super) path: String,
}

#[derive(Debug, Deserialize)]
struct Entries {
    #[serde(default)]
    entries: Vec<Entry>,
}

/// A file as the guest lists it. The guest sends numbers of 64 bits as texts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    size: Value,
    #[serde(default)]
    permissions: String,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    modified_time: String,
    #[serde(default)]
    symlink_target: Option<String>,
}

impl Entry {
    fn is_directory(&self) -> bool {
        self.kind == "FILE_TYPE_DIRECTORY"
    }

    pub(super) fn size(&self) -> u64 {
        self.size.as_u64().or_else(|| self.size.as_str()?.parse().ok()).unwrap_or(0)
    }
}

#[derive(Debug, Deserialize)]
struct Stat {
    entry: Entry,
}

pub(super) async fn stat(guest: &Guest, path: &str) -> Result<Entry, Failure> {
    Ok(guest.call::<Stat>("filesystem.Filesystem/Stat", json!({ "path": path })).await?.entry)
}

async fn browse(visit: Visit, Path(id): Path<String>, Query(wanted): Query<Wanted>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let path = if wanted.path.is_empty() { HOME } else { &wanted.path };
    let content = if guest.details.state == "paused" {
        html! {
            (head(&visit, &id, &guest.details, Tab::Files))
            p .notice { "The sandbox is paused. Resume it to see its files." }
        }
    } else {
        let mut found: Entries =
            guest.call("filesystem.Filesystem/ListDir", json!({ "path": path, "depth": 1 })).await?;
        found.entries.sort_by(|a, b| b.is_directory().cmp(&a.is_directory()).then_with(|| a.name.cmp(&b.name)));
        html! {
            (head(&visit, &id, &guest.details, Tab::Files))
            (toolbar(&visit, &id, path))
            div #files data-part data-upload={ (path_of(&id)) "/files/upload" } data-directory=(path) {
                @if found.entries.is_empty() { (show::empty("An empty folder. Drop files here to upload them.")) }
                @else { (table(&visit, &id, path, &found.entries)) }
            }
            p .hint { "Drop files anywhere on this page to upload them into this folder." }
        }
    };
    Ok(Page::new(format!("Files of {id}"), Section::Sandboxes)
        .script("files.js")
        .style("files.css")
        .show(&visit, content))
}

/// The folder's path, each part a link.
pub(super) fn crumbs(id: &str, path: &str) -> Markup {
    let base = format!("{}/files", path_of(id));
    let mut parts = Vec::new();
    let mut walked = String::new();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        walked = format!("{walked}/{name}");
        parts.push((name, walked.clone()));
    }
    html! {
        nav .crumbs aria-label="Folder" {
            a href={ (base) "?path=%2F" } { "/" }
            @for (name, path) in &parts { a href={ (base) "?path=" (encode(path)) } { (name) } span aria-hidden="true" { "/" } }
        }
    }
}

fn toolbar(visit: &Visit, id: &str, path: &str) -> Markup {
    let base = path_of(id);
    html! {
        div .title {
            (crumbs(id, path))
            div .actions {
                form method="post" action={ (base) "/files/folder" } {
                    (csrf(visit))
                    input type="hidden" name="directory" value=(path);
                    label .visually-hidden for="folder" { "Name of the new folder" }
                    input #folder name="name" required placeholder="New folder" size="14" autocomplete="off";
                    button type="submit" { "Create" }
                }
                label .button for="upload" { "Upload" }
                input #upload .visually-hidden type="file" multiple;
            }
        }
        p #upload-state .hint role="status" {}
    }
}

fn table(visit: &Visit, id: &str, directory: &str, entries: &[Entry]) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Files" {
            table {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "Size" } th scope="col" { "Changed" } th scope="col" { "Mode" }
                    th scope="col" { "Owner" } th scope="col" { span .visually-hidden { "Actions" } }
                } }
                tbody { @for entry in entries { (row(visit, id, directory, entry)) } }
            }
        }
    }
}

fn row(visit: &Visit, id: &str, directory: &str, entry: &Entry) -> Markup {
    let base = format!("{}/files", path_of(id));
    let place = encode(&entry.path);
    html! {
        tr {
            td .text {
                @if entry.is_directory() { a .folder href={ (base) "?path=" (place) } { (entry.name) "/" } }
                @else { a href={ (base) "/view?path=" (place) } { (entry.name) } }
                @if let Some(target) = &entry.symlink_target { span .muted { " → " (target) } }
            }
            td .number { @if !entry.is_directory() { (show::bytes(entry.size())) } }
            td .number { (show::time(&entry.modified_time)) }
            td { code { (entry.permissions) } }
            td { (entry.owner) }
            td .actions {
                @if !entry.is_directory() { a .button href={ (base) "/raw?path=" (place) } download { "Download" } " " }
                form method="post" action={ (base) "/rename" } data-prompt="New name" data-name=(entry.name) {
                    (csrf(visit)) (place_fields(directory, &entry.path))
                    input type="hidden" name="name" value=(entry.name);
                    button type="submit" { "Rename" }
                }
                " "
                form method="post" action={ (base) "/remove" } {
                    (csrf(visit)) (place_fields(directory, &entry.path))
                    button .danger type="submit" data-confirm={ "Delete " (entry.name) "?" } { "Delete" }
                }
            }
        }
    }
}

fn place_fields(directory: &str, path: &str) -> Markup {
    html! {
        input type="hidden" name="directory" value=(directory);
        input type="hidden" name="path" value=(path);
    }
}

/// A file as it is, to save or as the source of a picture.
async fn raw(visit: Visit, Path(id): Path<String>, Query(wanted): Query<Wanted>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let answer = guest.read_file(&wanted.path).await?;
    if !answer.status().is_success() {
        read(answer).await?;
        return Err(Failure::unexpected("the sandbox"));
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    if let Some(length) = head.headers.get(header::CONTENT_LENGTH) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    let kind = image_type(&wanted.path).unwrap_or("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(INERT));
    let name = wanted.path.rsplit('/').next().unwrap_or_default();
    let disposition = format!("attachment; filename*=UTF-8''{}", encode(name));
    headers.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::try_from(disposition).unwrap_or(HeaderValue::from_static("attachment")),
    );
    Ok(response)
}

/// Writes the body to a file. Sent by scripts.
async fn upload(
    visit: Visit,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
    request: Request,
) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let inside = http::Request::post(format!("/files?path={}", encode(&wanted.path)))
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .body(request.into_body())
        .map_err(|_| Failure::bad_request("this is not a path"))?;
    read(guest.send(GUEST, inside).await?).await?;
    Ok(Json(json!({ "path": wanted.path })).into_response())
}

#[derive(Deserialize)]
struct NewFolder {
    directory: String,
    name: String,
}

async fn make_folder(visit: Visit, Path(id): Path<String>, Form(form): Form<NewFolder>) -> Result<Response, Failure> {
    let path = below(&form.directory, &form.name)?;
    call(&visit, &id, "MakeDir", json!({ "path": path })).await?;
    Ok(back(&visit, &id, &form.directory, "The folder is there."))
}

#[derive(Deserialize)]
struct Removed {
    directory: String,
    path: String,
}

async fn remove(visit: Visit, Path(id): Path<String>, Form(form): Form<Removed>) -> Result<Response, Failure> {
    call(&visit, &id, "Remove", json!({ "path": form.path })).await?;
    Ok(back(&visit, &id, &form.directory, "It is deleted."))
}

#[derive(Deserialize)]
struct Renamed {
    directory: String,
    path: String,
    name: String,
}

async fn rename(visit: Visit, Path(id): Path<String>, Form(form): Form<Renamed>) -> Result<Response, Failure> {
    let destination = below(&form.directory, &form.name)?;
    call(&visit, &id, "Move", json!({ "source": form.path, "destination": destination })).await?;
    Ok(back(&visit, &id, &form.directory, "It is renamed."))
}

async fn call(visit: &Visit, id: &str, method: &str, body: Value) -> Result<(), Failure> {
    let guest = Guest::find(&visit.api, id).await?;
    guest.call::<Value>(&format!("filesystem.Filesystem/{method}"), body).await?;
    Ok(())
}

fn back(visit: &Visit, id: &str, directory: &str, sentence: &str) -> Response {
    visit.done(&format!("{}/files?path={}", path_of(id), encode(directory)), sentence)
}

/// A name in a directory. A path would go elsewhere than the user sees.
fn below(directory: &str, name: &str) -> Result<String, Failure> {
    let name = name.trim();
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(Failure::bad_request("the name of a file has no slashes, and is not empty"));
    }
    Ok(format!("{}/{name}", directory.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_directory() {
        assert_eq!(below("/home/user/", " a b ").unwrap(), "/home/user/a b");
        assert_eq!(below("/", "x").unwrap(), "/x");
        for name in ["", " ", ".", "..", "a/b", "../x"] {
            assert!(below("/home/user", name).is_err(), "{name}");
        }
    }
}
