//! Output of a run's tool calls on its way to the run's events, while the calls run.
//!
//! ```text
//! tool call ─▶ ToolLog ─▶ LiveOutput (one queue per run) ─▶ the run's task: events, ten times a second
//! ```
//! Writers never wait. The queue joins pieces of one stream, and it is limited: a call shows at most [`MAX_CALL`] bytes,
//! and what doesn't fit into a queue that nobody empties is dropped. Both are said in the log. The result of the call has
//! the whole output.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::sessions::{OutputKind, OutputSink};

/// The live output of one call, in bytes.
pub(super) const MAX_CALL: usize = 256 << 10;
/// The text of one event.
const MAX_PIECE: usize = 8 << 10;
/// What may wait in a queue.
const MAX_QUEUE: usize = 1 << 20;
const MAX_ENTRIES: usize = 4096;
/// How much of a call and of its result is shown. Events about nodes have the rest.
const MAX_SUMMARY: usize = 200;

/// What the tool calls of a run have written and no event has yet.
#[derive(Debug, Default)]
pub(crate) struct LiveOutput {
    /// Locked only briefly.
    queue: Mutex<Queue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Bytes that did not fit.
    dropped: usize,
}

#[derive(Debug)]
struct Entry {
    node: Option<String>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Output { call: u64, tool: String, kind: OutputKind, text: String },
    Message(Value),
}

/// An entry as the data of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LogLine {
    pub(super) node: Option<String>,
    pub(super) data: Value,
}

impl LiveOutput {
    /// Takes everything that waits.
    pub(super) fn take(&self) -> Vec<LogLine> {
        let Queue { entries, dropped, .. } =
            std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner));
        let mut lines: Vec<LogLine> = entries.into_iter().map(Entry::into_line).collect();
        if dropped > 0 {
            let message = format!("{dropped} bytes of output came too fast to be shown here");
            lines.push(LogLine { node: None, data: system(&message) });
        }
        lines
    }

    /// Waits until there is something to take.
    pub(super) async fn wait(&self) {
        loop {
            let added = self.added.notified();
            if !self.is_empty() {
                return;
            }
            added.await;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.entries.is_empty() && queue.dropped == 0
    }

    /// Adds a message that is not output.
    pub(super) fn message(&self, node: Option<String>, data: Value) {
        let size = data.to_string().len();
        self.add(size, |queue| queue.entries.push_back(Entry { node, body: Body::Message(data) }));
    }

    fn output(&self, node: &Option<String>, call: u64, tool: &str, kind: OutputKind, text: &str) {
        self.add(text.len(), |queue| {
            if let Some(Entry { body: Body::Output { call: last, kind: of, text: all, .. }, .. }) =
                queue.entries.back_mut()
                && (*last, *of) == (call, kind)
                && all.len() + text.len() <= MAX_PIECE
            {
                return all.push_str(text);
            }
            let body = Body::Output { call, tool: tool.to_owned(), kind, text: text.to_owned() };
            queue.entries.push_back(Entry { node: node.clone(), body });
        });
    }

    fn add(&self, size: usize, push: impl FnOnce(&mut Queue)) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.bytes + size > MAX_QUEUE || queue.entries.len() >= MAX_ENTRIES {
                queue.dropped += size;
                return;
            }
            queue.bytes += size;
            push(&mut queue);
        }
        self.added.notify_one();
    }
}

impl Entry {
    fn into_line(self) -> LogLine {
        let data = match self.body {
            Body::Message(data) => data,
            Body::Output { tool, kind, text, .. } => {
                json!({ "category": "TOOL_OUTPUT", "metadata": kind_text(kind), "message": text, "tool_name": tool })
            }
        };
        LogLine { node: self.node, data }
    }
}

fn kind_text(kind: OutputKind) -> &'static str {
    match kind {
        OutputKind::Stdout => "STDOUT",
        OutputKind::Stderr => "STDERR",
        OutputKind::Result => "RESULT",
    }
}

fn system(message: &str) -> Value {
    json!({ "category": "INFO", "metadata": "SYSTEM", "message": message })
}

/// The log of one tool call.
#[derive(Debug)]
pub(crate) struct ToolLog {
    output: Arc<LiveOutput>,
    node: Option<String>,
    tool: String,
    call: u64,
    /// How much more is shown.
    room: usize,
    began: Instant,
    has_ended: bool,
}

impl ToolLog {
    /// Announces a call of an agent or node.
    pub(crate) fn begin(output: Arc<LiveOutput>, node: Option<String>, tool: &str, arguments: &Value) -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let message = summary(&format!("{tool}({arguments})"));
        let call = json!({ "category": "TOOL_CALL", "metadata": "IO_REQ", "message": message, "tool_name": tool });
        output.message(node.clone(), call);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        Self { output, node, tool: tool.to_owned(), call, room: MAX_CALL, began: Instant::now(), has_ended: false }
    }

    /// Says how the call ended.
    pub(crate) fn end(mut self, success: bool, text: &str) {
        self.note_end(success, text);
    }

    fn note_end(&mut self, success: bool, text: &str) {
        self.has_ended = true;
        let duration = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = json!({
            "category": "TOOL_RESULT", "metadata": if success { "IO_OK" } else { "IO_ERR" }, "message": summary(text),
            "tool_name": self.tool, "duration_ms": duration,
        });
        self.output.message(self.node.clone(), result);
    }
}

impl Drop for ToolLog {
    fn drop(&mut self) {
        if !self.has_ended {
            self.note_end(false, "the call was aborted");
        }
    }
}

impl OutputSink for ToolLog {
    fn write(&mut self, kind: OutputKind, text: &str) {
        if self.room == 0 {
            return;
        }
        let (shown, is_all) = beginning(text, self.room);
        self.room = if is_all { self.room - shown.len() } else { 0 };
        let mut rest = shown;
        while !rest.is_empty() {
            let (piece, _) = beginning(rest, MAX_PIECE);
            self.output.output(&self.node, self.call, &self.tool, kind, piece);
            rest = &rest[piece.len()..];
        }
        if self.room == 0 {
            let message = format!("{} wrote more than {MAX_CALL} bytes; its result has the rest", self.tool);
            self.output.message(self.node.clone(), system(&message));
        }
    }
}

/// The beginning of a text, cut between characters, and whether it is all of it.
fn beginning(text: &str, most: usize) -> (&str, bool) {
    if text.len() <= most {
        return (text, true);
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    (&text[..end], false)
}

fn summary(text: &str) -> String {
    let (shown, is_all) = beginning(text, MAX_SUMMARY);
    if is_all { shown.to_owned() } else { format!("{shown}…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(output: &Arc<LiveOutput>) -> ToolLog {
        ToolLog::begin(Arc::clone(output), Some("a".to_owned()), "run_command", &json!({ "command": "x" }))
    }

    fn messages(output: &LiveOutput) -> Vec<(String, String)> {
        let text = |line: &LogLine, name: &str| line.data[name].as_str().unwrap().to_owned();
        output.take().iter().map(|line| (text(line, "metadata"), text(line, "message"))).collect()
    }

    #[test]
    fn pieces_of_a_stream_are_joined_and_streams_keep_their_order() {
        let output = Arc::default();
        let mut log = log(&output);
        for (kind, text) in [
            (OutputKind::Stdout, "one "),
            (OutputKind::Stdout, "two\n"),
            (OutputKind::Stderr, "no\n"),
            (OutputKind::Stdout, "three\n"),
            (OutputKind::Result, "42"),
        ] {
            log.write(kind, text);
        }
        log.end(false, "it failed");
        let seen = messages(&output);
        let expected = [
            ("IO_REQ", "run_command({\"command\":\"x\"})"),
            ("STDOUT", "one two\n"),
            ("STDERR", "no\n"),
            ("STDOUT", "three\n"),
            ("RESULT", "42"),
            ("IO_ERR", "it failed"),
        ];
        assert_eq!(seen, expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
        assert!(output.is_empty());
    }

    #[test]
    fn endless_output_is_cut_between_characters_and_said_to_be() {
        let output = Arc::default();
        let mut log = log(&output);
        for _ in 0..100 {
            log.write(OutputKind::Stdout, &"é".repeat(5000));
        }
        let lines = output.take();
        let text = |line: &LogLine| line.data["message"].as_str().unwrap().to_owned();
        let shown: usize =
            lines.iter().filter(|line| line.data["metadata"] == "STDOUT").map(|line| text(line).len()).sum();
        assert!((MAX_CALL - 1..=MAX_CALL).contains(&shown), "{shown}");
        assert!(lines.iter().all(|line| text(line).len() <= MAX_PIECE));
        assert!(text(lines.last().unwrap()).contains("wrote more"), "{lines:?}");
        log.write(OutputKind::Stderr, "later");
        assert!(output.is_empty());
        drop(log);
        assert_eq!(messages(&output), [("IO_ERR".to_owned(), "the call was aborted".to_owned())]);
    }

    #[test]
    fn a_queue_that_nobody_empties_is_bounded_and_says_what_it_lost() {
        let output = Arc::default();
        for _ in 0..8 {
            let mut log = log(&output);
            log.write(OutputKind::Stdout, &"x".repeat(MAX_CALL - 1));
        }
        let lines = output.take();
        let all: usize = lines.iter().map(|line| line.data["message"].as_str().unwrap().len()).sum();
        assert!(all <= MAX_QUEUE + 1024, "{all}");
        assert!(lines.last().unwrap().data["message"].as_str().unwrap().contains("too fast"), "{:?}", lines.last());
        log(&output).end(true, "fine");
        assert_eq!(output.take().len(), 2, "it goes on when there is room");
    }
}
