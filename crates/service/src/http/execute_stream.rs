//! `POST /api/v1/sandboxes/{id}/execute/stream`: runs a command and streams server-sent events: `started`, `stdout`,
//! `stderr`, and finally `end` or `error`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, Sse};
use futures::StreamExt as _;
use isopod_api::{ApiError, Caller, EventStream, JsonBody, audit::Subject};
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
    let mut pieces = Pieces { command_id, stdout: Tail::default(), stderr: Tail::default() };
    let events = running.map(move |event| Ok::<_, Infallible>(pieces.shown(event)));
    let mut response = Sse::new(events).into_response();
    response.extensions_mut().insert(Subject { sandbox: Some(sandbox), ..Subject::default() });
    Ok(EventStream(response))
}

/// Turns events of a command into server-sent events. Characters that are split between events are joined again.
struct Pieces {
    command_id: String,
    stdout: Tail,
    stderr: Tail,
}

impl Pieces {
    fn shown(&mut self, event: StreamEvent) -> Event {
        let (name, data) = match event {
            StreamEvent::Started(pid) => ("started", json!({ "id": self.command_id, "pid": pid })),
            StreamEvent::Stdout(bytes) => ("stdout", json!({ "data": self.stdout.text(&bytes) })),
            StreamEvent::Stderr(bytes) => ("stderr", json!({ "data": self.stderr.text(&bytes) })),
            StreamEvent::Ended(end) => {
                let millis = u64::try_from(end.duration.as_millis()).unwrap_or(u64::MAX);
                let rest = (self.stdout.rest(), self.stderr.rest());
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

/// The bytes of an incomplete character.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn text(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let keep = incomplete(&self.0);
        let rest = self.0.split_off(self.0.len() - keep);
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0 = rest;
        text
    }

    fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// How many bytes at the end are an incomplete character.
fn incomplete(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => 0,
        Err(error) => match (error.error_len(), bytes.len() - error.valid_up_to()) {
            (None, rest) => rest,
            // Earlier bytes are invalid, so check the last bytes separately.
            (Some(_), _) => (1..=3.min(bytes.len()))
                .find(|count| {
                    let tail = &bytes[bytes.len() - count..];
                    tail[0] >= 0xc0 && std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none())
                })
                .unwrap_or(0),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_that_is_cut_anywhere_is_put_together_again(text in ".{0,40}", cut in 0_usize..80) {
            let bytes = text.as_bytes();
            let cut = cut.min(bytes.len());
            let mut tail = Tail::default();
            let mut whole = tail.text(&bytes[..cut]);
            whole += &tail.text(&bytes[cut..]);
            whole += &tail.rest();
            prop_assert_eq!(whole, text);
        }

        #[test]
        fn any_bytes_can_be_shown(bytes: Vec<u8>) {
            let mut tail = Tail::default();
            let _ = tail.text(&bytes);
            prop_assert!(tail.0.len() <= 3);
        }
    }
}
