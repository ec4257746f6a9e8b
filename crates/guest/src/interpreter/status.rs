//! `GET /interpreter` on the guest's own socket: tells the host whether the interpreter is ready for its first cell.

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;

use super::Interpreter;
use super::language::Language;
use crate::http::{HttpError, Reply, check_host, json_reply};

#[derive(Debug, Serialize)]
struct Status {
    /// Whether there is a kernel for the first cell.
    parked: bool,
    /// The forkserver's version of Python. Empty before there was one.
    python: String,
    ipython: bool,
    contexts: usize,
}

pub(crate) fn status(interpreter: Option<&Interpreter>, request: &Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(request)?;
    let missing = || HttpError::new(StatusCode::NOT_FOUND, "this sandbox has no interpreter");
    let interpreter = interpreter.ok_or_else(missing)?;
    let default = interpreter.contexts.default_of(&Language::python().name);
    let runtime = interpreter.forkserver.runtime();
    Ok(json_reply(&Status {
        parked: default.is_some_and(|context| context.has_kernel()),
        python: runtime.python,
        ipython: runtime.ipython,
        contexts: interpreter.contexts.count(),
    }))
}
