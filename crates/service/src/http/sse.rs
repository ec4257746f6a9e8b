//! `GET /api/v1/sse?agent_id=`: events as they happen. Without an agent, those of the whole team.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use http::{HeaderMap, StatusCode};
use isopod_control::http::{ApiError, Caller, Query};

use crate::Access;
use crate::HubEvent;
use crate::Service;

const HEARTBEAT: Duration = Duration::from_secs(30);

pub(super) async fn follow(
    State(service): State<Arc<Service>>,
    caller: Caller,
    headers: HeaderMap,
    query: Query,
) -> Result<Response, ApiError> {
    let query = query.only(&["agent_id"])?;
    let agent = Access::from(&caller).agent_filter(query.text("agent_id"))?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let following = service.hub.follow(&caller.team, agent, last, &caller.actor).map_err(|error| {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).with_code("too_many_streams")
    })?;
    let stop = service.stop.clone();
    let events = stream::unfold((following, stop), |(mut following, stop)| async move {
        let event = tokio::select! {
            () = stop.cancelled() => None,
            event = following.next() => event,
        }?;
        Some((Ok::<_, Infallible>(shown(&event)), (following, stop)))
    });
    // `:heartbeat` keeps proxies from closing a quiet stream.
    let alive = KeepAlive::new().interval(HEARTBEAT).text("heartbeat");
    Ok(Sse::new(events).keep_alive(alive).into_response())
}

fn shown(event: &HubEvent) -> Event {
    Event::default().id(event.id.to_string()).event(event.kind).data(&*event.data)
}
