//! `GET /isopod/env`: how programs on this machine find the server under other domains than its own.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::config::{LocalNames, ServedNames};
use crate::parts::Parts;

/// How programs find the server.
#[derive(Serialize, ToSchema)]
#[schema(as = ProgramEnvironment)]
pub(super) struct Environment {
    /// The server's own domain.
    domain: String,
    names: Option<NamesView>,
    /// Why no other names are served.
    problem: Option<String>,
}

/// The names that the server serves in addition to its own.
#[derive(Serialize, ToSchema)]
#[schema(as = LocalNames)]
struct NamesView {
    domains: Vec<String>,
    /// The address of the resolver and of the server's https port.
    #[schema(value_type = String, format = Ipv4)]
    address: Ipv4Addr,
    /// The certificate of the authority in PEM.
    authority: String,
}

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Json<Environment> {
    let (names, problem) = match &parts.local_names {
        LocalNames::Served(ServedNames { domains, address, authority }) => {
            let names = NamesView { domains: domains.clone(), address: *address, authority: authority.clone() };
            (Some(names), None)
        }
        LocalNames::Missing(reason) => (None, Some(reason.clone())),
    };
    Json(Environment { domain: parts.app.domain().to_owned(), names, problem })
}
