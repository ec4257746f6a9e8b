//! `POST /api/v1/sandboxes/{id}/execute/stream`: runs a command and streams server-sent events: `started`, `stdout`,
//! `stderr`, and finally `end` or `error`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, Sse};
use futures::StreamExt as _;
use isopod_api::{ApiError, Caller, EventStream, JsonBody, audit::Subject};
use isopod_guest_client::guest::TextDecoder;
use serde_json::{Value, json};

use super::execute::ExecuteBody;
use crate::Access;
use crate::Service;
use crate::{ServiceError, StreamEvent};

pub(super) async fn execute_stream(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<ExecuteBody>,
) -> Result<EventStream, ApiError> {
    let command = body.parse()?.checked(&service)?;
    let running = service.start(&Access::from(&caller), &id, command).await?;
    let (command_id, sandbox) = (running.id.clone(), running.sandbox.clone());
    let mut pieces = Pieces { command_id, stdout: TextDecoder::default(), stderr: TextDecoder::default() };
    let events = running.map(move |event| Ok::<_, Infallible>(pieces.shown(event)));
    let mut response = Sse::new(events).into_response();
    response.extensions_mut().insert(Subject { sandbox: Some(sandbox), ..Subject::default() });
    Ok(EventStream(response))
}

/// Turns events of a command into server-sent events. Characters that are split between events are joined again.
struct Pieces {
    command_id: String,
    stdout: TextDecoder,
    stderr: TextDecoder,
}

impl Pieces {
    fn shown(&mut self, event: StreamEvent) -> Event {
        let (name, data) = match event {
            StreamEvent::Started(pid) => ("started", json!({ "id": self.command_id, "pid": pid })),
            StreamEvent::Stdout(bytes) => ("stdout", json!({ "data": self.stdout.push(&bytes) })),
            StreamEvent::Stderr(bytes) => ("stderr", json!({ "data": self.stderr.push(&bytes) })),
            StreamEvent::Ended(end) => {
                let millis = u64::try_from(end.duration.as_millis()).unwrap_or(u64::MAX);
                let rest = (self.stdout.finish(), self.stderr.finish());
                let mut data = json!({
                    "id": self.command_id, "exit_code": end.exit_code, "status": end.status,
                    "timed_out": end.timed_out, "duration_ms": millis,
                });
                // An incomplete character at the very end of a stream.
                for (name, rest) in [("stdout_rest", rest.0), ("stderr_rest", rest.1)] {
                    if !rest.is_empty() {
                        data[name] = json!(rest);
                    }
                }
                ("end", data)
            }
            StreamEvent::Failed(error) => {
                let error = ServiceError::Backend(error);
                ("error", json!({ "id": self.command_id, "error_code": error.code(), "message": error.to_string() }))
            }
        };
        event_of(name, &data)
    }
}

fn event_of(name: &str, data: &Value) -> Event {
    Event::default().event(name).data(data.to_string())
}
