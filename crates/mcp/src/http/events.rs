//! Events of streams, kept for a while, so that a client whose connection broke gets what it missed.
//!
//! The id of an event is its number and its stream, `17.STREAM`. Streams have random names, so nobody can ask for those of
//! others.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::{Stream, StreamExt as _, stream};
use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::streamable_http_server::session::{
    EventId, EventStore, EventStoreError, EventStream, ServerSseMessage,
};
use tokio::sync::watch;

/// How much is kept of all streams together.
const MAX_BYTES: usize = 32 << 20;
const MAX_EVENTS: usize = 20_000;
/// For how long.
const MAX_AGE: Duration = Duration::from_secs(300);
/// The end of the names of streams that belong to a session rather than to a request.
const COMMON: &str = ":common";

pub(super) type Messages = Pin<Box<dyn Stream<Item = ServerSseMessage> + Send + Sync>>;

#[derive(Debug)]
pub(super) struct Events {
    kept: Mutex<Kept>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    bytes: usize,
    last: u64,
}

#[derive(Debug)]
struct Event {
    number: u64,
    stream: String,
    message: ServerSseMessage,
    size: usize,
    at: Instant,
}

/// Which event a client got last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    number: u64,
    stream: String,
}

#[derive(Debug, thiserror::Error)]
#[error("the event is not kept any more")]
struct Forgotten;

impl Default for Events {
    fn default() -> Self {
        Self { kept: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl Position {
    pub(super) fn is_common(&self) -> bool {
        self.stream.ends_with(COMMON)
    }

    /// Whether the event with this id comes after it.
    pub(super) fn is_before(&self, id: Option<&str>) -> bool {
        id.and_then(parse).is_none_or(|other| other.number > self.number)
    }
}

impl Events {
    /// The position of an event that is kept.
    pub(super) fn position(&self, id: &str) -> Option<Position> {
        let position = parse(id)?;
        let is_it = |event: &Event| event.number == position.number && event.stream == position.stream;
        self.kept().events.iter().any(is_it).then_some(position)
    }

    /// What came after it until now.
    pub(super) fn missed(&self, position: &Position) -> Vec<ServerSseMessage> {
        let kept = self.kept();
        let missed = kept.events.iter().filter(|event| event.is_after(position));
        missed.map(|event| event.message.clone()).collect()
    }

    /// What comes after it in the stream of a request, until its response.
    pub(super) fn follow(self: &Arc<Self>, position: Position) -> Messages {
        let start = (Arc::clone(self), self.newest.subscribe(), Some(position));
        Box::pin(stream::unfold(start, |(events, mut newest, position)| async move {
            let mut position = position?;
            loop {
                // Marked as seen before the look, so that nothing comes in between unseen.
                newest.borrow_and_update();
                if let Some((number, message)) = events.next(&position) {
                    position.number = number;
                    let next = (!is_response(&message)).then_some(position);
                    return Some((message, (events, newest, next)));
                }
                newest.changed().await.ok()?;
            }
        }))
    }

    fn next(&self, position: &Position) -> Option<(u64, ServerSseMessage)> {
        let kept = self.kept();
        kept.events.iter().find(|event| event.is_after(position)).map(|event| (event.number, event.message.clone()))
    }

    fn add(&self, stream: &str, message: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        let size = match &message.message {
            Some(message) => serde_json::to_vec(message.as_ref())?.len(),
            None => 0,
        };
        let mut kept = self.kept();
        kept.last += 1;
        let number = kept.last;
        let id = format!("{number}.{stream}");
        let mut message = message.clone();
        message.event_id = Some(id.clone());
        kept.bytes += size;
        kept.events.push_back(Event { number, stream: stream.to_owned(), message, size, at: Instant::now() });
        kept.drop_old();
        drop(kept);
        self.newest.send_replace(number);
        Ok(id)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn drop_old(&mut self) {
        while let Some(oldest) = self.events.front()
            && (self.bytes > MAX_BYTES || self.events.len() > MAX_EVENTS || oldest.at.elapsed() > MAX_AGE)
        {
            self.bytes -= oldest.size;
            self.events.pop_front();
        }
    }
}

impl Event {
    fn is_after(&self, position: &Position) -> bool {
        self.number > position.number && self.stream == position.stream
    }
}

fn parse(id: &str) -> Option<Position> {
    let (number, stream) = id.split_once('.')?;
    Some(Position { number: number.parse().ok()?, stream: stream.to_owned() })
}

fn is_response(message: &ServerSseMessage) -> bool {
    matches!(message.message.as_deref(), Some(ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)))
}

#[async_trait]
impl EventStore for Events {
    async fn store_event(&self, stream: &str, event: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        self.add(stream, event)
    }

    async fn replay_events_after(&self, last: &str) -> Result<EventStream, EventStoreError> {
        let position = self.position(last).ok_or(Forgotten)?;
        Ok(stream::iter(self.missed(&position)).boxed_sync())
    }
}

/// `futures` boxes only streams that are `Send`.
trait BoxedSync: Stream<Item = ServerSseMessage> + Send + Sync + Sized + 'static {
    fn boxed_sync(self) -> Messages {
        Box::pin(self.fuse())
    }
}

impl<S: Stream<Item = ServerSseMessage> + Send + Sync + 'static> BoxedSync for S {}

#[cfg(test)]
mod tests {
    use rmcp::model::{ErrorData, NumberOrString};

    use super::*;

    fn retry() -> ServerSseMessage {
        ServerSseMessage::retry(Duration::from_secs(1))
    }

    fn response() -> ServerSseMessage {
        let error = ErrorData::internal_error("x", None);
        ServerSseMessage::from_message(ServerJsonRpcMessage::error(error, Some(NumberOrString::Number(1))))
    }

    #[tokio::test]
    async fn a_stream_is_followed_from_an_event_to_its_response() {
        let events = Arc::new(Events::default());
        let first = events.add("one", &retry()).unwrap();
        events.add("two", &retry()).unwrap();
        let position = events.position(&first).unwrap();
        let followed =
            tokio::spawn(events.follow(position).map(|message| message.event_id.unwrap()).collect::<Vec<_>>());
        let second = events.add("one", &retry()).unwrap();
        let last = events.add("one", &response()).unwrap();
        assert_eq!(followed.await.unwrap(), [second.clone(), last]);
        assert!(events.position(&second).is_some());
        for unknown in ["", "1", "1.two", "99.one", "x.one"] {
            assert!(events.position(unknown).is_none(), "{unknown}");
        }
    }

    #[test]
    fn only_so_much_is_kept() {
        let events = Events::default();
        let first = events.add("one", &retry()).unwrap();
        for _ in 0..MAX_EVENTS {
            events.add("two", &response()).unwrap();
        }
        assert!(events.position(&first).is_none());
        let kept = events.kept();
        assert_eq!(kept.events.len(), MAX_EVENTS);
        assert_eq!(kept.bytes, kept.events.iter().map(|event| event.size).sum::<usize>());
    }
}
