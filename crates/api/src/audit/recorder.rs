//! A task that writes the audit log and the history, many records per transaction. A caller that requests an audit line
//! is notified when it is written, before the response is sent. Therefore no line is lost whose client has a response.
//!
//! If the store fails, the task retries until it succeeds. Waiting callers get an error after a while, and new
//! operations are refused until the backlog is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use isopod_store::service::{AuditEntry, ChainEnd, Record};
use isopod_store::{Store, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The handle for reporting. When the last one is dropped, the writer writes the rest and ends.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Item>,
    state: Arc<RecorderState>,
}

/// The state that the writer shows to others.
#[derive(Debug, Default)]
struct RecorderState {
    /// Whether the store is failing. Set by the writer.
    failing: AtomicBool,
    /// The number of records that are not written yet.
    backlog: AtomicU64,
    /// The number of audit lines written since the start.
    lines: AtomicU64,
}

/// The audit log cannot be written at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit log cannot be written at the moment")]
pub struct AuditDown;

#[derive(Debug)]
struct Item {
    record: Record,
    written: Option<oneshot::Sender<()>>,
}

const QUEUE: usize = 10_000;
const BATCH: usize = 512;
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_AFTER: Duration = Duration::from_millis(100);

impl Recorder {
    /// Returns the recorder of this server's chain and its writer, which the caller must run.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn open(store: &Store) -> Result<(Self, impl Future<Output = ()> + use<>), StoreError> {
        let server = store.server_identity().await?;
        let end = store.chain_end(&server).await?;
        Ok(Self::new(store.clone(), end))
    }

    /// Returns the recorder and its writer, which the caller must run.
    fn new(store: Store, end: ChainEnd) -> (Self, impl Future<Output = ()>) {
        let (queue, items) = mpsc::channel(QUEUE);
        let state = Arc::<RecorderState>::default();
        (Self { queue, state: Arc::clone(&state) }, write(store, end, items, state))
    }

    /// Whether operations may start.
    pub fn is_ready(&self) -> Result<(), AuditDown> {
        if self.state.failing.load(Ordering::Relaxed) { Err(AuditDown) } else { Ok(()) }
    }

    /// Queues a record. A later audit line of the same caller is written with it or after it.
    pub async fn note(&self, record: Record) {
        self.send(record, None).await;
    }

    /// Like `note`, for callers that cannot wait, such as a dropped request.
    pub fn note_at_once(&self, record: Record) {
        self.state.backlog.fetch_add(1, Ordering::Relaxed);
        let Err(mpsc::error::TrySendError::Full(item)) = self.queue.try_send(Item { record, written: None }) else {
            return;
        };
        let queue = self.queue.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { queue.send(item).await });
        }
    }

    /// Writes an audit line, after everything that was queued before it.
    pub async fn audit(&self, entry: AuditEntry) -> Result<(), AuditDown> {
        let (written, ack) = oneshot::channel();
        self.send(Record::Audit(entry), Some(written)).await;
        ack.await.map_err(|_| AuditDown)
    }

    async fn send(&self, record: Record, written: Option<oneshot::Sender<()>>) {
        self.state.backlog.fetch_add(1, Ordering::Relaxed);
        // The writer lives as long as any recorder.
        let _ = self.queue.send(Item { record, written }).await;
    }

    pub fn backlog(&self) -> u64 {
        self.state.backlog.load(Ordering::Relaxed)
    }

    pub fn lines(&self) -> u64 {
        self.state.lines.load(Ordering::Relaxed)
    }
}

async fn write(store: Store, mut end: ChainEnd, mut items: mpsc::Receiver<Item>, state: Arc<RecorderState>) {
    let mut batch = Vec::new();
    while items.recv_many(&mut batch, BATCH).await > 0 {
        let (records, mut waiting): (Vec<_>, Vec<_>) = batch.drain(..).map(|item| (item.record, item.written)).unzip();
        let started = Instant::now();
        while let Err(error) = store.write_records(&mut end, &records).await {
            if started.elapsed() > WRITE_TIMEOUT && !waiting.is_empty() {
                tracing::error!(
                    error = isopod_wire::error_chain(&error),
                    lines = records.len(),
                    "could not write the audit log; retrying"
                );
                state.failing.store(true, Ordering::Relaxed);
                // Dropping the senders informs the waiting callers that the line is not written yet. It stays in the
                // batch.
                waiting.clear();
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
        state.failing.store(false, Ordering::Relaxed);
        let lines = records.iter().filter(|record| matches!(record, Record::Audit(_))).count();
        state.lines.fetch_add(lines as u64, Ordering::Relaxed);
        state.backlog.fetch_sub(records.len() as u64, Ordering::Relaxed);
        for written in waiting.into_iter().flatten() {
            // The caller may be gone.
            let _ = written.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use isopod_store::TeamId;
    use isopod_store::clock::Timestamp;

    use super::*;

    fn entry(action: String) -> AuditEntry {
        AuditEntry {
            at: Timestamp::now(),
            team: TeamId("t".to_owned()),
            actor: "key:k".to_owned(),
            action,
            sandbox: Some("s".to_owned()),
            agent: None,
            task: None,
            source: Some("127.0.0.1".to_owned()),
            status: 200,
            code: None,
            micros: 5,
        }
    }

    /// Append-only, chained by hashes. Changes behind the server's back are detected.
    #[tokio::test]
    async fn lines_of_many_writers_make_one_chain_and_a_forgery_breaks_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let server = store.server_identity().await.unwrap();
        for round in 0..2 {
            // The second writer continues where the first ended, as after a restart.
            let (recorder, writer) = Recorder::new(store.clone(), store.chain_end(&server).await.unwrap());
            let writer = tokio::spawn(writer);
            let all = (0..200).map(|number| recorder.audit(entry(format!("round{round}.{number}"))));
            assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
            drop(recorder);
            writer.await.unwrap();
        }
        let good = store.verify_audit(&server).await.unwrap();
        assert_eq!((good.lines, good.broken_at), (400, None));
        let refused = store.tamper("UPDATE audit SET actor = 'nobody' WHERE number = 250").await;
        assert!(refused.is_err(), "the audit could be changed");
        assert!(store.tamper("DELETE FROM audit").await.is_err(), "the audit could be shortened");
        let is_postgres = isopod_store::testing::postgres::is_wanted();
        let drop_trigger = if is_postgres {
            "DROP TRIGGER audit_is_not_changed ON audit"
        } else {
            "DROP TRIGGER audit_is_not_changed"
        };
        store.tamper(drop_trigger).await.unwrap();
        store.tamper("UPDATE audit SET actor = 'nobody' WHERE number = 250").await.unwrap();
        let bad = store.verify_audit(&server).await.unwrap();
        assert_eq!((bad.lines, bad.broken_at), (249, Some(250)));
    }

    /// The connection breaks after the database has committed and before it confirms that.
    #[tokio::test]
    async fn a_batch_whose_answer_was_lost_is_not_written_twice() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let server = store.server_identity().await.unwrap();
        let before = store.chain_end(&server).await.unwrap();
        let batch = ["with a NUL \0", "two"].map(|action| Record::Audit(entry(action.to_owned())));
        let (mut end, mut again, mut other) = (before.clone(), before.clone(), before);
        store.write_records(&mut end, &batch).await.unwrap();
        store.write_records(&mut again, &batch).await.unwrap();
        assert_eq!(again, end);
        let forged = [Record::Audit(entry("another in the same place".to_owned()))];
        assert!(store.write_records(&mut other, &forged).await.is_err(), "one line was taken for another");
        let verified = store.verify_audit(&server).await.unwrap();
        assert_eq!((verified.lines, verified.broken_at), (2, None));
    }
}
