//! The Redis channel `raro:live_logs`, on which agents and kernels pass on what happens in a run while it happens.
//!
//! Log events of runs are published there, in their order, after they are recorded. What other programs publish about an
//! active run becomes log events of the run. Nothing waits for Redis: if it is away or slow, readers of the channel miss
//! messages, and the events of the run don't.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use isopod_store::{EventKind, RunEvent, RunId};
use redis::{Pipeline, RedisError};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Runs;
use crate::sessions::RedisMap;

const CHANNEL: &str = "raro:live_logs";
/// Messages that wait for Redis.
const MAX_WAITING: usize = 1024;
const BATCH: usize = 128;
/// A longer message of another program is ignored.
const MAX_MESSAGE: usize = 64 << 10;
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Marks our messages, so that no server takes them for those of an agent.
const OURS: &str = "isopod";
/// Marks events that came from the channel, which has them already.
const FROM_CHANNEL: &str = "live_logs";

/// Publishes log events of runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveLogs {
    /// `None` if there is no Redis.
    waiting: Option<mpsc::Sender<String>>,
    dropped: Arc<AtomicU64>,
}

impl LiveLogs {
    /// A publisher and the receiver of its messages.
    pub(super) fn new() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { waiting: Some(sender), dropped: Arc::default() }, receiver)
    }

    /// Publishes the log events among these.
    pub(super) fn publish(&self, run: &RunId, events: &[RunEvent]) {
        let Some(waiting) = &self.waiting else { return };
        let logs = events.iter().filter(|event| event.kind == EventKind::IntermediateLog);
        for event in logs.filter(|event| event.data["source"] != FROM_CHANNEL) {
            if waiting.try_send(message(run, event).to_string()).is_err()
                && self.dropped.fetch_add(1, Ordering::Relaxed) == 0
            {
                tracing::warn!("Redis is too slow for the log events of runs; its readers miss some");
            }
        }
    }
}

fn message(run: &RunId, event: &RunEvent) -> Value {
    let mut message = json!({
        "run_id": run.as_str(), "agent_id": event.node, "category": "INFO", "metadata": "INFO", "message": "",
        "timestamp": event.at, "event_id": event.seq, "source": OURS,
    });
    if let (Some(message), Some(data)) = (message.as_object_mut(), event.data.as_object()) {
        message.extend(data.clone());
    }
    message
}

/// Publishes until the server stops.
pub(super) async fn run_live_logs(redis: Arc<RedisMap>, mut waiting: mpsc::Receiver<String>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        let mut commands = Pipeline::new();
        for message in batch.drain(..) {
            commands.cmd("PUBLISH").arg(CHANNEL).arg(message);
        }
        // It is logged there if Redis is away. A message that nobody could hear is not kept.
        redis.run(&commands).await;
    }
}

/// Listens until the server stops.
pub(super) async fn run_live_logs_listener(runs: Arc<Runs>, redis: Arc<RedisMap>) {
    let stop = runs.shared.stop.clone();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            heard = listen(&runs, &redis) => if let Err(error) = heard {
                tracing::debug!(error = isopod_wire::error_chain(&error), "cannot listen to {CHANNEL}; will retry");
            },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_AFTER) => {}
        }
    }
}

async fn listen(runs: &Runs, redis: &RedisMap) -> Result<(), RedisError> {
    let mut messages = redis.subscribe(CHANNEL).await?;
    while let Some(message) = messages.next().await {
        take_in(runs, message.get_payload_bytes());
    }
    Ok(())
}

/// Adds a message of another program to the log of its run.
fn take_in(runs: &Runs, message: &[u8]) {
    if message.len() > MAX_MESSAGE {
        return;
    }
    let Ok(message) = serde_json::from_slice::<Value>(message) else { return };
    let text = |name: &str| message[name].as_str();
    let run = text("run_id").and_then(|run| run.parse::<RunId>().ok());
    let Some(live) = run.and_then(|run| runs.shared.find(&run)) else { return };
    if text("source") == Some(OURS) {
        return;
    }
    let mut data = json!({
        "message": text("message").unwrap_or_default(), "metadata": text("metadata").unwrap_or("INFO"),
        "category": text("category").unwrap_or("INFO"), "source": FROM_CHANNEL,
    });
    for name in ["tool_name", "duration_ms"] {
        if !message[name].is_null() {
            data[name] = message[name].clone();
        }
    }
    live.output.message(text("agent_id").map(str::to_owned), data);
}

#[cfg(test)]
mod tests {
    use isopod_store::TeamId;
    use isopod_store::clock::Timestamp;
    use isopod_store::testing::redis::RedisServer;

    use super::*;

    fn run() -> RunId {
        "run-1".parse().unwrap()
    }

    fn events(numbers: std::ops::Range<i64>) -> Vec<RunEvent> {
        let event = |seq| RunEvent {
            seq,
            at: Timestamp(0),
            kind: EventKind::IntermediateLog,
            node: Some("a".to_owned()),
            data: json!({ "message": format!("line {seq}"), "category": "TOOL_OUTPUT", "metadata": "STDOUT" }),
        };
        numbers.map(event).collect()
    }

    /// The numbers of the events that wait for Redis.
    fn waiting_numbers(waiting: &mut mpsc::Receiver<String>) -> Vec<i64> {
        let text = std::iter::from_fn(|| waiting.try_recv().ok());
        text.map(|text| serde_json::from_str::<Value>(&text).unwrap()["event_id"].as_i64().unwrap()).collect()
    }

    /// Nobody takes the messages, as if Redis never answered. The run's task, which calls this, must not wait.
    #[test]
    fn what_does_not_fit_is_dropped_and_what_fits_keeps_its_order() {
        let (logs, mut waiting) = LiveLogs::new();
        let room = i64::try_from(MAX_WAITING).unwrap();
        logs.publish(&run(), &events(0..room + 300));
        assert_eq!(logs.dropped.load(Ordering::Relaxed), 300);
        assert_eq!(waiting_numbers(&mut waiting), (0..room).collect::<Vec<_>>(), "the first ones, in order");
        logs.publish(&run(), &events(5000..5003));
        assert_eq!(waiting_numbers(&mut waiting), [5000, 5001, 5002], "it goes on when there is room");
        assert_eq!(logs.dropped.load(Ordering::Relaxed), 300);
    }

    #[test]
    fn only_log_events_are_published_and_none_that_came_from_the_channel() {
        let (logs, mut waiting) = LiveLogs::new();
        let mut all = events(1..5);
        all[0].kind = EventKind::AgentStarted;
        all[2].data["source"] = json!(FROM_CHANNEL);
        logs.publish(&run(), &all);
        assert_eq!(waiting_numbers(&mut waiting), [2, 4]);
        LiveLogs::default().publish(&run(), &all);
    }

    #[tokio::test]
    async fn many_batches_arrive_in_redis_in_their_order() {
        let redis = RedisServer::start();
        let mut listener = redis::Client::open(redis.url()).unwrap().get_async_pubsub().await.unwrap();
        listener.subscribe(CHANNEL).await.unwrap();
        let heard = listener.into_on_message();
        let (logs, waiting) = LiveLogs::new();
        let map = Arc::new(RedisMap::new(&redis.url(), TeamId("t".to_owned())).unwrap());
        let publisher = tokio::spawn(run_live_logs(map, waiting));
        let count = i64::try_from(BATCH * 3 + 7).unwrap();
        logs.publish(&run(), &events(0..count));
        let heard: Vec<i64> = heard
            .take(usize::try_from(count).unwrap())
            .map(|message| serde_json::from_slice::<Value>(message.get_payload_bytes()).unwrap())
            .map(|message| message["event_id"].as_i64().unwrap())
            .collect()
            .await;
        assert_eq!(heard, (0..count).collect::<Vec<_>>());
        drop(logs);
        publisher.await.unwrap();
    }

    /// It accepts connections and never answers.
    #[tokio::test]
    async fn a_redis_that_hangs_costs_messages_and_holds_nothing_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        let (logs, waiting) = LiveLogs::new();
        let map = Arc::new(RedisMap::new(&url, TeamId("t".to_owned())).unwrap());
        let publisher = tokio::spawn(run_live_logs(map, waiting));
        while logs.dropped.load(Ordering::Relaxed) == 0 {
            logs.publish(&run(), &events(0..100));
            tokio::task::yield_now().await;
        }
        // Its commands time out, so it takes more and ends with the last publisher.
        drop(logs);
        publisher.await.unwrap();
    }
}
