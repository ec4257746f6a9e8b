//! The exporter: collects spans for a moment, sends them, retries a few times, and logs a warning when spans are lost.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::send::Sender;
use crate::span::FinishedSpan;

/// The most spans in one batch.
const MAX_BATCH: usize = 512;
/// How long a span waits for others to share its batch.
const GATHER: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// How long the last batch may delay the shutdown of the server.
const LAST: Duration = Duration::from_secs(2);
/// The pause between two warnings. A collector that is down for hours does not deserve a log line every second.
const QUIET: Duration = Duration::from_secs(60);

/// Takes spans from the layer and sends them. After it is stopped, it sends the remaining spans.
#[derive(Debug)]
pub struct OtlpExporter {
    spans: mpsc::Receiver<FinishedSpan>,
    sender: Sender,
    dropped: Arc<AtomicU64>,
}

impl OtlpExporter {
    pub(crate) fn new(spans: mpsc::Receiver<FinishedSpan>, sender: Sender, dropped: Arc<AtomicU64>) -> Self {
        Self { spans, sender, dropped }
    }

    /// Sends spans until `stop` is ready, then sends the remaining ones.
    pub async fn run(mut self, stop: impl Future) {
        let mut trouble = Trouble::default();
        let stop = stop.map(|_| ()).shared();
        while let Some(batch) = self.gather(stop.clone()).await {
            let mut delivery = pin!(self.deliver(batch, &mut trouble));
            tokio::select! {
                () = &mut delivery => continue,
                () = stop.clone() => {}
            }
            if tokio::time::timeout(LAST, delivery).await.is_err() {
                tracing::warn!("could not send all traces before the shutdown");
                return;
            }
        }
    }

    /// Returns the first span and those that follow soon after, or `None` if there will be no more.
    async fn gather(&mut self, stop: impl Future<Output = ()> + Clone + Unpin) -> Option<Vec<FinishedSpan>> {
        let mut batch = Vec::new();
        tokio::select! {
            first = self.spans.recv() => batch.push(first?),
            () = stop.clone() => self.spans.close(),
        }
        let mut wait = pin!(tokio::time::sleep(GATHER));
        while batch.len() < MAX_BATCH {
            let room = MAX_BATCH - batch.len();
            tokio::select! {
                // Take the spans that are already there before anything else ends the wait.
                biased;
                taken = self.spans.recv_many(&mut batch, room) => if taken == 0 { break },
                () = &mut wait => break,
                () = stop.clone(), if !self.spans.is_closed() => self.spans.close(),
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    async fn deliver(&self, batch: Vec<FinishedSpan>, trouble: &mut Trouble) {
        let body = self.sender.body(&batch);
        let mut pause = FIRST_PAUSE;
        let mut lost = self.take_dropped();
        for left in (0..TRIES).rev() {
            match self.sender.send(body.clone()).await {
                Ok(()) => break,
                Err(error) if left > 0 && error.may_pass() => {
                    tokio::time::sleep(error.retry_after().unwrap_or(pause)).await;
                    pause *= 2;
                }
                Err(error) => {
                    lost += batch.len() as u64;
                    trouble.last = Some(isopod_wire::error_chain(&error));
                    break;
                }
            }
        }
        trouble.tell(lost);
    }

    fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// The spans that were lost since the last warning.
#[derive(Default)]
struct Trouble {
    lost: u64,
    last: Option<String>,
    said: Option<Instant>,
}

impl Trouble {
    fn tell(&mut self, lost: u64) {
        self.lost += lost;
        if self.lost == 0 || self.said.is_some_and(|said| said.elapsed() < QUIET) {
            return;
        }
        let reason = self.last.take().unwrap_or_else(|| "spans arrived faster than they could be sent".to_owned());
        tracing::warn!(lost = self.lost, reason, "traces were lost");
        (self.lost, self.said) = (0, Some(Instant::now()));
    }
}
