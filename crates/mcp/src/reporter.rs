//! Tells the client what a long call writes while it runs: progress notifications for clients that asked for them, and
//! log notifications.
//!
//! A task sends them at most ten times a second, so a client that reads slowly, or a command that writes much, holds up
//! nothing: what didn't fit is left out, and the result of the call has it anyway.

#![expect(deprecated, reason = "the newest protocol keeps log notifications for those who ask for them")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use isopod_client::guest::TextDecoder;
use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::text::visible;

/// The time between two notifications of a call.
const INTERVAL: Duration = Duration::from_millis(100);
/// How many bytes of new output a notification has.
const MAX_MESSAGE: usize = 2000;
/// How long the last notification may take. Then the client gets the result without it.
const LAST: Duration = Duration::from_secs(1);

/// Where output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Whom to tell.
#[derive(Clone, Debug)]
pub(crate) struct Audience {
    pub(crate) peer: Peer<RoleServer>,
    pub(crate) progress: Option<ProgressToken>,
    pub(crate) wants_logs: bool,
}

impl Audience {
    /// Begins to report.
    pub(crate) fn reporter(&self) -> Reporter {
        if self.progress.is_none() && !self.wants_logs {
            return Reporter { news: None, task: None };
        }
        let news = Arc::new(News::default());
        let task = tokio::spawn(tell(self.clone(), Arc::clone(&news)));
        Reporter { news: Some(news), task: Some(task) }
    }
}

/// Takes what is written.
#[derive(Debug)]
pub(crate) struct Reporter {
    news: Option<Arc<News>>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct News {
    /// Written by the call, emptied by the task.
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    decoders: [TextDecoder; 2],
    /// The beginnings of lines that have no end yet.
    unfinished: [String; 2],
    texts: [String; 2],
    lines: u64,
    is_over: bool,
}

impl Reporter {
    pub(crate) fn wrote(&self, stream: Stream, bytes: &[u8]) {
        let Some(news) = &self.news else { return };
        news.change(|pending| pending.add(stream, bytes));
    }

    /// Sends what is left.
    pub(crate) async fn finish(mut self) {
        if let (Some(news), Some(mut task)) = (&self.news, self.task.take()) {
            news.change(Pending::end);
            if tokio::time::timeout(LAST, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl News {
    fn change(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// The new text of both streams, the number of lines until now, and whether there will be more.
    fn take(&self) -> ([String; 2], u64, bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut pending.texts), pending.lines, pending.is_over)
    }
}

impl Pending {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let index = stream as usize;
        let mut text = std::mem::take(&mut self.unfinished[index]);
        text.push_str(&self.decoders[index].push(bytes));
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        self.lines += text[..end].matches('\n').count() as u64;
        self.texts[index].push_str(&text[..end]);
        self.unfinished[index] = text.split_off(end);
        for text in [&mut self.texts[index], &mut self.unfinished[index]] {
            keep_end(text);
        }
    }

    fn end(&mut self) {
        for index in 0..2 {
            let rest = std::mem::take(&mut self.unfinished[index]) + &self.decoders[index].finish();
            self.lines += u64::from(!rest.is_empty());
            self.texts[index].push_str(&rest);
            keep_end(&mut self.texts[index]);
        }
        self.is_over = true;
    }
}

fn keep_end(text: &mut String) {
    let over = text.len().saturating_sub(MAX_MESSAGE);
    text.drain(..text.ceil_char_boundary(over));
}

async fn tell(audience: Audience, news: Arc<News>) {
    loop {
        news.changed.notified().await;
        let (texts, lines, is_over) = news.take();
        let (stdout, stderr) = (visible(&texts[0]), visible(&texts[1]));
        let shown = [(Stream::Stdout, stdout), (Stream::Stderr, stderr)];
        if shown.iter().any(|(_, text)| !text.is_empty()) {
            audience.send(&shown, lines).await;
        }
        if is_over {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

impl Audience {
    async fn send(&self, shown: &[(Stream, String); 2], lines: u64) {
        // A client that can't be told is gone, and then the call ends too.
        if let Some(token) = &self.progress {
            let message = format!("{}{}", shown[0].1, shown[1].1);
            #[expect(clippy::cast_precision_loss, reason = "nobody counts that many lines")]
            let progress = ProgressNotificationParam::new(token.clone(), lines as f64).with_message(message.trim_end());
            let _ = self.peer.notify_progress(progress).await;
        }
        if self.wants_logs {
            for (stream, text) in shown.iter().filter(|(_, text)| !text.is_empty()) {
                let log = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(text.trim_end()));
                let _ = self.peer.notify_logging_message(log.with_logger(stream.name())).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_told_and_the_rest_at_the_end() {
        let news = News::default();
        news.change(|pending| pending.add(Stream::Stdout, b"one\ntw"));
        assert_eq!(news.take(), (["one\n".to_owned(), String::new()], 1, false));
        news.change(|pending| pending.add(Stream::Stderr, "é".as_bytes()));
        news.change(|pending| pending.add(Stream::Stdout, b"o"));
        assert_eq!(news.take(), ([String::new(), String::new()], 1, false));
        news.change(Pending::end);
        assert_eq!(news.take(), (["two".to_owned(), "é".to_owned()], 3, true));
    }

    #[test]
    fn much_output_takes_little_memory() {
        let mut pending = Pending::default();
        for _ in 0..100 {
            pending.add(Stream::Stdout, &[b'x'; 10_000]);
            pending.add(Stream::Stderr, &[b'\n'; 10_000]);
        }
        assert!(pending.unfinished[0].len() <= MAX_MESSAGE && pending.texts[1].len() <= MAX_MESSAGE);
    }
}
