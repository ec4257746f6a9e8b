//! `GET /api/v1/sse?agent_id=`: events as they happen. Without an agent, those of the whole team.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream;
use http::StatusCode;
use http::request::Parts;
use isopod_api::{ApiError, Caller, DescribeInput, Description, EventStream, Param, Query, QueryParams};

use crate::Access;
use crate::HubEvent;
use crate::Service;

pub(super) enum Follow {}

impl QueryParams for Follow {
    const PARAMS: &'static [Param] = &[Param::text("agent_id")];
}

/// The last event that the client has seen. Invalid values are ignored.
pub(super) struct LastEventId(Option<u64>);

impl<S: Sync> FromRequestParts<S> for LastEventId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let given = parts.headers.get("last-event-id");
        Ok(Self(given.and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok())))
    }
}

impl DescribeInput for LastEventId {
    fn describe(operation: &mut Description) {
        operation.header(&Param::text("Last-Event-ID").about("go on after this event"));
    }
}

pub(super) async fn follow(
    State(service): State<Arc<Service>>,
    caller: Caller,
    LastEventId(last): LastEventId,
    query: Query<Follow>,
) -> Result<EventStream, ApiError> {
    let agent = Access::from(&caller).agent_filter(query.text("agent_id"))?;
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
    let alive = KeepAlive::new().interval(service.config.heartbeat).text("heartbeat");
    Ok(EventStream(Sse::new(events).keep_alive(alive).into_response()))
}

fn shown(event: &HubEvent) -> Event {
    Event::default().id(event.id.to_string()).event(event.kind).data(&*event.data)
}
