//! Follows a run: by server-sent events, which a client can resume where they broke off, and by a WebSocket that also
//! sends the whole state. Both read the store. The run only signals that there is something new.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Path, State};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use http::HeaderValue;
use http::request::Parts;
use isopod_api::{ApiError, Caller, DescribeInput, Description, EventStream, Param, Query, QueryParams, Upgraded};
use isopod_store::clock::Timestamp;
use isopod_store::{RunEvent, RunId, RunRow, StoreError};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::runtime_runs::find_run;
use crate::Agents;

const PAGE: u32 = 200;
/// The state is sent when it has changed, and not again before this time.
const STATE_EVERY: Duration = Duration::from_millis(250);
/// How long a client has to read the last message.
const CLOSE_AFTER: Duration = Duration::from_millis(500);

/// The position in a run's events.
struct Reading {
    app: Arc<Agents>,
    run: RunId,
    after: i64,
    /// `None` once the run has ended. Then the store has everything.
    live: Option<watch::Receiver<i64>>,
}

impl Reading {
    fn new(app: Arc<Agents>, run: RunId, after: i64) -> Self {
        let live = app.runs.watch(&run);
        Self { app, run, after, live }
    }

    /// The next events. Empty at the end of the run.
    async fn next(&mut self) -> Result<Vec<RunEvent>, StoreError> {
        loop {
            // Mark it as seen before reading, so that what is written in the meantime wakes us again.
            if let Some(live) = &mut self.live {
                live.borrow_and_update();
            }
            let events = self.app.fleet.store.run_events(&self.run, self.after, PAGE).await?;
            if let Some(last) = events.last() {
                self.after = last.seq;
                return Ok(events);
            }
            let Some(live) = &mut self.live else { return Ok(Vec::new()) };
            if live.changed().await.is_err() {
                // The task is gone. Read once more for what it wrote last.
                self.live = None;
            }
        }
    }
}

pub(super) enum Events {}

impl QueryParams for Events {
    const PARAMS: &'static [Param] = &[Param::number("after", 0, i64::MAX).about("only events after this one")];
}

/// The last event that the client has, which counts where the query says nothing.
pub(super) struct LastEventId(Option<HeaderValue>);

impl<S: Sync> FromRequestParts<S> for LastEventId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.headers.get("last-event-id").cloned()))
    }
}

impl DescribeInput for LastEventId {
    fn describe(operation: &mut Description) {
        operation.header(&Param::text("Last-Event-ID").about("the same as `after`, which goes before it"));
    }
}

/// `GET /runtime/{run_id}/events`
pub(super) async fn events(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    last: LastEventId,
    query: Query<Events>,
) -> Result<EventStream, ApiError> {
    let row = find_run(&app, &caller, &id).await?;
    let after = match query.number("after")? {
        Some(after) => after,
        None => last.number()?,
    };
    let reading = Reading::new(Arc::clone(&app), row.id, after);
    Ok(EventStream(Sse::new(as_stream(reading)).keep_alive(KeepAlive::default()).into_response()))
}

impl LastEventId {
    fn number(&self) -> Result<i64, ApiError> {
        let Some(given) = &self.0 else { return Ok(0) };
        let number = given.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|number| *number >= 0);
        number.ok_or_else(|| ApiError::bad_request("Last-Event-ID must be the id of an event"))
    }
}

fn as_stream(reading: Reading) -> impl Stream<Item = Result<Event, Infallible>> {
    let pages = futures::stream::unfold(reading, |mut reading| async move {
        match reading.next().await {
            Ok(events) if events.is_empty() => None,
            Ok(events) => {
                let run = reading.run.clone();
                let shown = move |event: RunEvent| {
                    let data = event.json(run.as_str()).to_string();
                    Ok(Event::default().id(event.seq.to_string()).event(event.kind.text()).data(data))
                };
                Some((futures::stream::iter(events.into_iter().map(shown)), reading))
            }
            Err(error) => {
                // The client resumes with the last id that it has.
                tracing::warn!(error = isopod_wire::error_chain(&error), "could not read the events of a run");
                None
            }
        }
    });
    futures::StreamExt::flatten(pages)
}

/// `GET /ws/runtime/{run_id}`
pub(super) async fn socket(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Upgraded, ApiError> {
    let upgrade = upgrade.map_err(|error| ApiError::bad_request(format!("this route needs a WebSocket: {error}")))?;
    let found = find_run(&app, &caller, &id).await;
    Ok(Upgraded(upgrade.on_upgrade(move |socket| async move {
        match found {
            Ok(row) => follow(app, row, socket).await,
            Err(_) => refuse(socket).await,
        }
    })))
}

async fn refuse(mut socket: WebSocket) {
    // The client may be gone.
    let _ = socket.send(text(&json!({ "error": "Run not found" }))).await;
    let _ = socket.send(Message::Close(None)).await;
}

async fn follow(app: Arc<Agents>, row: RunRow, mut socket: WebSocket) {
    let mut reading = Reading::new(Arc::clone(&app), row.id.clone(), row.last_seq);
    if !send_state(&app, &row.id, &mut socket).await {
        return;
    }
    let mut next_state = Instant::now() + STATE_EVERY;
    let mut is_new = false;
    loop {
        tokio::select! {
            biased;
            heard = socket.recv() => match heard {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
            () = tokio::time::sleep_until(next_state), if is_new => {
                is_new = false;
                if !send_state(&app, &row.id, &mut socket).await {
                    return;
                }
                next_state = Instant::now() + STATE_EVERY;
            }
            events = reading.next() => match events {
                Ok(events) if !events.is_empty() => {
                    is_new = true;
                    if !send_events(&row.id, &events, &mut socket).await {
                        return;
                    }
                }
                _ => break,
            },
        }
    }
    if send_state(&app, &row.id, &mut socket).await {
        tokio::time::sleep(CLOSE_AFTER).await;
        let _ = socket.send(Message::Close(None)).await;
    }
}

/// Returns false if the client is gone.
async fn send_events(run: &RunId, events: &[RunEvent], socket: &mut WebSocket) -> bool {
    for event in events {
        let mut shown = event.json(run.as_str());
        shown["type"] = json!(event.kind.message_type());
        if socket.send(text(&shown)).await.is_err() {
            return false;
        }
    }
    true
}

async fn send_state(app: &Agents, run: &RunId, socket: &mut WebSocket) -> bool {
    match state_update(app, run).await {
        Ok(state) => socket.send(text(&state)).await.is_ok(),
        Err(error) => {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not read the state of a run");
            false
        }
    }
}

async fn state_update(app: &Agents, run: &RunId) -> Result<Value, StoreError> {
    let state = match app.fleet.store.find_run(run).await? {
        Some(row) => app.runs.state(&row).await?,
        None => Value::Null,
    };
    Ok(json!({
        "type": "state_update",
        "state": state,
        "signatures": app.runs.signatures(run).await?,
        "topology": app.runs.topology(run).await?,
        "timestamp": Timestamp::now(),
    }))
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}
