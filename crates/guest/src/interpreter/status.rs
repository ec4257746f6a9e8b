//! `GET /interpreter` on the guest's own socket: tells the host whether the interpreter waits for its first cell.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;

use super::Host;
use super::language::Language;
use crate::guest::Guest;
use crate::http::{HttpError, Reply, check_host, json_reply};

#[derive(Debug, Serialize)]
struct Status {
    /// There is a kernel for the first cell.
    parked: bool,
    /// The version of the mother's Python; empty when there was no mother yet.
    python: String,
    ipython: bool,
    contexts: usize,
}

pub(crate) fn status(guest: &Arc<Guest>, request: &Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(request)?;
    let missing = || HttpError::new(StatusCode::NOT_FOUND, "this sandbox has no interpreter");
    let host = Host::new(guest).ok_or_else(missing)?;
    let interpreter = host.interpreter();
    let default = interpreter.contexts.default_of(&Language::python().name);
    let about = interpreter.mothers.about();
    Ok(json_reply(&Status {
        parked: default.is_some_and(|context| context.has_kernel()),
        python: about.python,
        ipython: about.ipython,
        contexts: interpreter.contexts.count(),
    }))
}
