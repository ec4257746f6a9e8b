//! Writes log lines and events in the background, so that no request waits for them.

use std::collections::BTreeMap;

use isopod_store::clock::Timestamp;
use isopod_store::{Event, EventType, Level, LogLine, SandboxRow, Store};
use isopod_wire::SandboxId;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The handle for reporting. Clones share the queue. When the last one is dropped, the writer writes the rest and ends.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    entries: mpsc::Sender<Entry>,
}

#[derive(Debug)]
enum Entry {
    Line(SandboxId, LogLine),
    Event(Box<Event>),
}

/// The queue is limited, so that a store that hangs does not fill the memory. Entries that do not fit are dropped with
/// a warning.
const QUEUE: usize = 10_000;

impl Journal {
    /// Returns the journal and its writer, which the caller must run.
    pub(crate) fn new(store: Store) -> (Self, impl Future<Output = ()>) {
        let (entries, queue) = mpsc::channel(QUEUE);
        (Self { entries }, write(store, queue))
    }

    /// Adds a line to the log of a sandbox.
    pub(crate) fn line(&self, sandbox: &SandboxId, level: Level, message: &str, fields: &[(&str, String)]) {
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect::<BTreeMap<_, _>>();
        let line = LogLine { timestamp: Timestamp::now(), level, message: message.to_owned(), fields };
        self.send(Entry::Line(sandbox.clone(), line));
    }

    /// Adds an event for webhooks and event lists.
    pub(crate) fn event(&self, kind: EventType, row: &SandboxRow, extra: Value) {
        let mut data = json!({ "sandbox_metadata": row.metadata });
        if let (Some(data), Value::Object(extra)) = (data.as_object_mut(), extra) {
            data.extend(extra);
        }
        let subject = (&row.team, &row.id, row.execution.as_ref(), row.template.as_str());
        self.send(Entry::Event(Box::new(Event::new(kind, subject, data))));
    }

    fn send(&self, entry: Entry) {
        if self.entries.try_send(entry).is_err() {
            tracing::warn!("a log line or event was dropped: the store does not keep up");
        }
    }
}

async fn write(store: Store, mut queue: mpsc::Receiver<Entry>) {
    while let Some(entry) = queue.recv().await {
        let written = match &entry {
            Entry::Line(sandbox, line) => store.insert_log(sandbox, line).await,
            Entry::Event(event) => store.insert_event(event).await,
        };
        if let Err(error) = written {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not record a log line or event");
        }
    }
}
