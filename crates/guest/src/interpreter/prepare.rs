//! `POST /interpreter` on the guest's own socket: starts a kernel for the first cell, as the host does before it saves a sandbox
//! of which many others start. `GET` says when it is there.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use super::Interpreter;
use super::language::Language;
use crate::http::{HttpError, Reply, check_host, status_reply};

pub(crate) fn prepare(interpreter: Option<&Arc<Interpreter>>, request: &Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(request)?;
    let missing = || HttpError::new(StatusCode::NOT_FOUND, "this sandbox has no interpreter");
    let interpreter = Arc::clone(interpreter.ok_or_else(missing)?);
    tokio::spawn(async move {
        let context = interpreter.contexts.ensure_default(&interpreter, &Language::python());
        // On failure, the first cell tries again.
        let _ = context.prepare().await;
    });
    Ok(status_reply(StatusCode::ACCEPTED))
}
