//! `POST /contexts/{id}/fork`: makes new contexts with the variables of a Python context.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::Interpreter;
use super::context::{Context, View};
use super::copies::CopyError;
use super::ends::MAX_KERNELS;
use super::language::Language;
use super::route::{no_context, read};
use crate::http::{HttpError, MAX_JSON, Reply, json_reply};

#[derive(Debug, Deserialize)]
struct ForkRequest {
    #[serde(default = "one")]
    count: usize,
}

#[derive(Debug, Default, Serialize)]
struct ForkReply {
    contexts: Vec<View>,
    /// Why the others were not made.
    errors: Vec<String>,
}

fn one() -> usize {
    1
}

pub(super) async fn fork(
    interpreter: &Arc<Interpreter>,
    id: &str,
    request: Request<Incoming>,
) -> Result<Reply, HttpError> {
    let wanted: ForkRequest = read(request, MAX_JSON).await?;
    let source = interpreter.contexts.get(id).ok_or_else(|| no_context(id))?;
    check(&source, wanted.count)?;
    let copies = source.fork(wanted.count).await.map_err(|_| no_context(id))?.map_err(refused)?;
    let mut made = ForkReply::default();
    for copy in copies {
        match copy {
            Ok(kernel) => {
                let context = Context::with_kernel(interpreter, Language::python(), source.view.cwd.clone(), kernel);
                made.contexts.push(context.view.clone());
                interpreter.contexts.add(Arc::new(context));
            }
            Err(error) => made.errors.push(error.to_string()),
        }
    }
    reply(made)
}

fn check(source: &Context, count: usize) -> Result<(), HttpError> {
    let language = &source.view.language;
    if *language != Language::python().name {
        let message = format!("only Python contexts can be forked, and this one is of the language '{language}'");
        return Err(HttpError::new(StatusCode::BAD_REQUEST, message));
    }
    if !(1..=MAX_KERNELS).contains(&count) {
        return Err(HttpError::new(StatusCode::BAD_REQUEST, format!("count must be from 1 to {MAX_KERNELS}")));
    }
    Ok(())
}

fn refused(error: CopyError) -> HttpError {
    let status = match error {
        CopyError::Restarted => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    HttpError::new(status, error.to_string())
}

fn reply(mut made: ForkReply) -> Result<Reply, HttpError> {
    if made.contexts.is_empty() {
        return Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, made.errors.swap_remove(0)));
    }
    let mut reply = json_reply(&made);
    *reply.status_mut() = StatusCode::CREATED;
    Ok(reply)
}
