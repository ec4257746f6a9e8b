//! `POST /execute`: runs code in a context and streams what happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::Interpreter;
use super::context::{Context, Execution};
use super::events::KEEPALIVE;
use super::language::{self, Language, LanguageError};
use super::route::{no_context, read};
use crate::http::{HttpError, Reply, authorize, drain, stream_body};

/// The longest code. In JSON it may be longer because of escapes.
const MAX_CODE: usize = 64 << 20;
const MAX_BODY: usize = 2 * MAX_CODE;
/// How long a stream is silent before it sends a keep-alive line.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How many chunks may wait for a slow client before the kernel has to wait.
const MAX_QUEUED_CHUNKS: usize = 4;

#[derive(Debug, Deserialize)]
struct ExecuteRequest {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
}

pub(super) async fn execute(interpreter: &Arc<Interpreter>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    if let Some(settings) = interpreter.settings.get()
        && let Err(refused) = authorize(&settings, &request)
    {
        drain(request.into_body()).await;
        return Err(refused);
    }
    let wanted: ExecuteRequest = read(request, MAX_BODY).await?;
    check(&wanted)?;
    let context = context(interpreter, wanted.context_id, wanted.language).await?;
    let (events, lines) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let execution = Execution { code: wanted.code, env: wanted.env_vars, events };
    context.execute(execution).await.map_err(|_| no_context(&context.view.id))?;
    Ok(stream(lines))
}

fn check(wanted: &ExecuteRequest) -> Result<(), HttpError> {
    if wanted.code.len() > MAX_CODE {
        return Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "code is longer than 64 MiB"));
    }
    for (name, value) in wanted.env_vars.iter().flatten() {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(HttpError::new(StatusCode::BAD_REQUEST, format!("invalid environment variable '{name}'")));
        }
    }
    Ok(())
}

async fn context(
    interpreter: &Arc<Interpreter>,
    id: Option<String>,
    language: Option<String>,
) -> Result<Arc<Context>, HttpError> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let contexts = &interpreter.contexts;
    match (given(id), given(language)) {
        (Some(_), Some(_)) => {
            Err(HttpError::new(StatusCode::BAD_REQUEST, "Only one of context_id or language can be provided"))
        }
        (Some(id), None) => contexts.get(&id).ok_or_else(|| no_context(&id)),
        (None, Some(wanted)) => {
            let language = language::find(interpreter, &wanted).await.map_err(LanguageError::into_http)?;
            Ok(contexts.ensure_default(interpreter, &language))
        }
        (None, None) => Ok(contexts.ensure_default(interpreter, &Language::python())),
    }
}

/// Streams the lines as they arrive. If the client disconnects, the receiver is dropped, which the cell notices.
fn stream(lines: mpsc::Receiver<Bytes>) -> Reply {
    let body = stream_body(lines, |mut lines| async move {
        let next = match tokio::time::timeout(KEEPALIVE_INTERVAL, lines.recv()).await {
            Ok(next) => next?,
            Err(_) => Bytes::from_static(KEEPALIVE),
        };
        Some((Ok(next), lines))
    });
    let mut reply = Response::new(body);
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    reply
}
