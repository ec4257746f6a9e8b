//! `/dashboard/sandboxes/{id}/ports`: what listens in a sandbox, with a preview. A preview is on an origin of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Path, Query};
use axum::response::Response;
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads};
use isopod_wire::{GUEST_PORT, INTERPRETER_PORT};
use maud::html;
use serde::Deserialize;

use super::sandbox::{Tab, head, path_of};
use crate::Dashboard;
use crate::api::read;
use crate::failure::Failure;
use crate::guest::Guest;
use crate::page::{Page, Section};
use crate::show;
use crate::visit::Visit;

/// The kernel's lists of TCP sockets.
const SOCKETS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a socket that accepts connections, in those lists.
const LISTENS: &str = "0A";

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new().route("/dashboard/sandboxes/{id}/ports", [page(reads(Session), list)])
}

#[derive(Debug, Deserialize)]
struct Wanted {
    port: Option<u16>,
}

async fn list(visit: Visit, Path(id): Path<String>, Query(wanted): Query<Wanted>) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let ports = listening(&guest).await;
    let path = path_of(&id);
    let content = html! {
        (head(&visit, &id, &guest.details, Tab::Ports))
        form .filters method="get" action={ (path) "/ports" } {
            label for="port" { "Port" }
            input #port name="port" type="number" min="1" max="65535" required value=[wanted.port];
            button type="submit" { "Preview" }
        }
        div #ports data-part {
            @if ports.is_empty() { (show::empty("Nothing listens. Start a server in the sandbox, on any port.")) } @else {
                div .scroll tabindex="0" role="region" aria-label="Ports" {
                    table {
                        thead { tr { th scope="col" { "Port" } th scope="col" { "URL" } th scope="col" { "Preview" } } }
                        tbody { @for port in &ports {
                            @let url = visit.preview_url(&id, *port);
                            tr {
                                td .number { (port) }
                                td .text { a href=(url) target="_blank" rel="noopener noreferrer" { (url) } }
                                td { a href={ (path) "/ports?port=" (port) } { "Show here" } }
                            }
                        } }
                    }
                }
            }
        }
        @if let Some(port) = wanted.port {
            h2 { "Port " (port) }
            // It is another origin, and can't lead this window elsewhere.
            iframe .preview title={ "Preview of port " (port) } src=(visit.preview_url(&id, port)) referrerpolicy="no-referrer"
                sandbox="allow-scripts allow-forms allow-same-origin allow-popups allow-modals allow-downloads" {}
        }
    };
    let page = Page::new(format!("Ports of {id}"), Section::Sandboxes).refresh(5).frames(visit.preview_source());
    Ok(page.show(&visit, content))
}

/// The ports on which something listens. Empty if the sandbox is paused, or doesn't say.
async fn listening(guest: &Guest) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    if guest.details.state == "paused" {
        return ports;
    }
    for path in SOCKETS {
        let Ok(response) = guest.read_file(path).await else { continue };
        let Ok((_, text)) = read(response).await else { continue };
        ports.extend(ports_in(&String::from_utf8_lossy(&text)));
    }
    ports.retain(|port| *port != GUEST_PORT && *port != INTERPRETER_PORT);
    ports
}

/// A line has the columns `sl local_address rem_address st …`, with addresses such as `0100007F:1F90`.
fn ports_in(list: &str) -> impl Iterator<Item = u16> {
    list.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, _, state) = (columns.next()?, columns.next()?, columns.next()?);
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (state == LISTENS).then_some(port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_found_in_the_kernels_list() {
        let list = "  sl  local_address rem_address   st tx_queue\n\
                    \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
                    \x20  1: 0100007F:1F91 00000000:0000 01 00000000:00000000\n\
                    \x20  2: 00000000000000000000000000000000:0BB8 0:0 0A 0\n\
                    nonsense\n  3: x:zz 0 0A";
        assert_eq!(ports_in(list).collect::<Vec<_>>(), [8080, 3000]);
        assert_eq!(ports_in("").count(), 0);
    }
}
