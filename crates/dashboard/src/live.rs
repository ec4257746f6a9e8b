//! Live pages: a stream of events tells the browser when a page is out of date, and a script then loads it again.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use serde_json::Value;
use std::sync::Arc;

use crate::Dashboard;
use crate::visit::Visit;

/// How often the API is asked for news.
const EVERY: Duration = Duration::from_secs(1);
/// The browser connects again after this. In milliseconds.
const RETRY: Duration = Duration::from_secs(2);

/// `GET /dashboard/live/sandboxes`: whenever a sandbox of the team was created, changed or ended.
pub(crate) async fn sandboxes(State(dashboard): State<Arc<Dashboard>>, visit: Visit) -> Response {
    changes_of("/events/sandboxes?limit=1&orderAsc=false", dashboard, visit)
}

/// Sends `changed` whenever the answer of this route is another than before. Ends when the user may no longer read it.
pub(crate) fn changes_of(path: &'static str, dashboard: Arc<Dashboard>, visit: Visit) -> Response {
    let events = stream::unfold((dashboard, visit, None::<Value>), move |(dashboard, visit, mut known)| async move {
        loop {
            let now = visit.api.get::<Value>(path).await.ok()?;
            if known.as_ref() != Some(&now) {
                // The page may be older than the stream, so the first answer is news too.
                // Browsers drop events without data.
                let event = Event::default().event("changed").data("now").retry(RETRY);
                return Some((Ok::<_, Infallible>(event), (dashboard, visit, Some(now))));
            }
            known = Some(now);
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = dashboard.closing.cancelled() => return None,
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}
