//! The exporter: gather for a moment, send, try again a few times, and say so when spans are lost.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::send::Sender;
use crate::span::FinishedSpan;

/// Spans of one batch.
const MAX_BATCH: usize = 512;
/// How long a span may wait for others to travel with.
const GATHER: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// What is left at the end of the server must not hold it up.
const LAST: Duration = Duration::from_secs(2);
/// A collector that is gone for hours is not worth a line per second.
const QUIET: Duration = Duration::from_secs(60);

/// Takes spans from the layer and sends them. Runs until it is told to stop, then sends what is left.
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

    /// Sends spans until `stop` is ready, then what is left.
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
                tracing::warn!("some traces were not sent before the end");
                return;
            }
        }
    }

    /// The first span and those that come soon after. None when there will be no more.
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
                // What is there already is taken before anything ends the wait.
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

/// What was lost since it was last said.
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
        let reason = self.last.take().unwrap_or_else(|| "they came faster than they could be sent".to_owned());
        tracing::warn!(lost = self.lost, reason, "traces were lost");
        (self.lost, self.said) = (0, Some(Instant::now()));
    }
}
