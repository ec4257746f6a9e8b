//! The agent services of runs, and which of them were told that their run has ended.

use std::time::Duration;

use super::{Store, StoreError};
use crate::RunId;
use crate::clock::Timestamp;
use crate::database::{Row, Transaction, query};

/// A service whose agents a run calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AgentService {
    /// The one from the server's settings.
    Configured,
    /// The one at the URL that nodes of the run give.
    At(String),
}

impl AgentService {
    pub fn url(&self) -> Option<&str> {
        match self {
            Self::Configured => None,
            Self::At(url) => Some(url),
        }
    }

    fn text(&self) -> &str {
        self.url().unwrap_or_default()
    }
}

/// A service of a run.
#[derive(Clone, Debug)]
pub struct RunService {
    pub service: AgentService,
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: Option<String>,
    pub cleanup: ServiceCleanup,
}

/// Whether a service was told that the run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceCleanup {
    Pending,
    Done,
    /// It did not confirm before the deadline.
    Failed,
}

impl ServiceCleanup {
    pub fn text(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Failed => "cleanup_failed",
        }
    }
}

impl Store {
    /// The services of a run, in the order of their URLs.
    pub async fn run_services(&self, run: &RunId) -> Result<Vec<RunService>, StoreError> {
        let rows = query(
            "SELECT url, attempts, error, done_at IS NOT NULL, failed_at IS NOT NULL FROM run_services \
             WHERE run = ? ORDER BY url",
        )
        .bind(run.as_str())
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("read the agent services of a run"))?;
        Ok(rows.iter().map(read_service).collect())
    }

    /// Records that the service has confirmed the end of the run.
    pub async fn confirm_service_cleanup(&self, run: &RunId, service: &AgentService) -> Result<(), StoreError> {
        query("UPDATE run_services SET done_at = ?, attempts = attempts + 1, error = NULL WHERE run = ? AND url = ?")
            .bind(Timestamp::now().0)
            .bind(run.as_str())
            .bind(service.text())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record that an agent service has cleaned up"))?;
        Ok(())
    }

    /// Records a failed attempt. Gives up if the first one was longer ago than `deadline`. Returns whether it did.
    pub async fn fail_service_cleanup(
        &self,
        run: &RunId,
        service: &AgentService,
        error: &str,
        deadline: Duration,
    ) -> Result<bool, StoreError> {
        let failed = StoreError::doing("record that an agent service has not cleaned up");
        let now = Timestamp::now();
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query(
            "UPDATE run_services SET attempts = attempts + 1, error = ?, give_up_at = COALESCE(give_up_at, ?) \
             WHERE run = ? AND url = ?",
        )
        .bind(error)
        .bind(now.plus(deadline).0)
        .bind(run.as_str())
        .bind(service.text())
        .execute(&mut transaction)
        .await
        .map_err(&failed)?;
        let done = query("UPDATE run_services SET failed_at = ? WHERE run = ? AND url = ? AND give_up_at <= ?")
            .bind(now.0)
            .bind(run.as_str())
            .bind(service.text())
            .bind(now.0)
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(done.rows_affected() > 0)
    }
}

pub(super) async fn write_service(
    transaction: &mut Transaction,
    run: &RunId,
    service: &AgentService,
) -> Result<(), sqlx::Error> {
    query("INSERT INTO run_services (run, url, attempts) VALUES (?, ?, 0) ON CONFLICT DO NOTHING")
        .bind(run.as_str())
        .bind(service.text())
        .execute(transaction)
        .await?;
    Ok(())
}

fn read_service(row: &Row) -> RunService {
    let url: String = row.get(0);
    let (is_done, is_failed): (bool, bool) = (row.get(3), row.get(4));
    RunService {
        service: if url.is_empty() { AgentService::Configured } else { AgentService::At(url) },
        attempts: row.get(1),
        error: row.get(2),
        cleanup: match (is_done, is_failed) {
            (true, _) => ServiceCleanup::Done,
            (false, true) => ServiceCleanup::Failed,
            (false, false) => ServiceCleanup::Pending,
        },
    }
}
