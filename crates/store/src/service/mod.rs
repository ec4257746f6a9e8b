//! The records of the sandbox service: the owners of its sandboxes, tasks and agents, commands, the audit log and
//! resource use. The SQL is plain and is only in this module, so that another database can replace it.

mod agents;
mod audit;
mod commands;
mod quota;
mod sandboxes;
mod short_urls;
mod tasks;
mod team_quota;
mod tiers;
mod usage;

use super::{Store, StoreError};
#[cfg(any(test, feature = "testing"))]
use crate::database::Pool;

pub use agents::AgentRow;
pub use audit::{AuditChain, AuditLine, Verified};
pub use audit::{AuditEntry, AuditQuery, ChainEnd};
pub use commands::{CommandQuery, CommandRow, GitRow, StoredCommand};
pub use quota::{QuotaExceeded, QuotaLimits, QuotaOwner, QuotaUsage, Quotas};
pub use sandboxes::{RecordedEnd, ServiceQuery, ServiceSandbox, Status, Taken};
pub use short_urls::{ShortUrl, ShortUrlClaim, ShortUrlLimits};
pub use tasks::TaskRow;
pub use team_quota::TeamQuota;
pub use tiers::{EffectiveQuota, Tiers};
pub use usage::{Reading, UsageGroup, UsageRow};

/// A record. A batch of records is written completely or not at all.
#[derive(Debug)]
pub enum Record {
    Audit(AuditEntry),
    Command(Box<CommandRow>),
    Git(GitRow),
    /// Bytes that were transferred into and out of a sandbox.
    Bytes {
        sandbox: String,
        bytes_in: i64,
        bytes_out: i64,
    },
}

impl Store {
    /// Writes a batch in one transaction. `end` is the end of the chain, and it advances after the whole batch is
    /// written. If a batch was written but the reply was lost, this is detected, and it is not written twice.
    pub async fn write_records(&self, end: &mut ChainEnd, records: &[Record]) -> Result<(), StoreError> {
        match self.try_write_records(end, records).await {
            Err(error) if error.is_duplicate() && self.is_written(end, records).await? => Ok(()),
            done => done,
        }
    }

    /// Whether the chain already ends with this batch. If so, `end` advances. A batch without audit lines has ids that
    /// only its writer could have used.
    async fn is_written(&self, end: &mut ChainEnd, records: &[Record]) -> Result<bool, StoreError> {
        let mut next = end.clone();
        for record in records {
            if let Record::Audit(entry) = record {
                next = audit::next(&next, entry).1;
            }
        }
        let is_written = self.chain_end(end.server()).await? == next;
        if is_written {
            *end = next;
        }
        Ok(is_written)
    }

    async fn try_write_records(&self, end: &mut ChainEnd, records: &[Record]) -> Result<(), StoreError> {
        let failed = StoreError::doing("write the audit log");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        let mut next = end.clone();
        for record in records {
            match record {
                Record::Audit(entry) => audit::insert(&mut transaction, &mut next, entry).await,
                Record::Command(row) => commands::insert(&mut transaction, row).await,
                Record::Git(row) => commands::insert_git(&mut transaction, row).await,
                Record::Bytes { sandbox, bytes_in, bytes_out } => {
                    usage::add_bytes(&mut transaction, sandbox, *bytes_in, *bytes_out).await
                }
            }
            .map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)?;
        *end = next;
        Ok(())
    }
}

#[cfg(any(test, feature = "testing"))]
impl Store {
    /// What someone with access to the file could do.
    pub async fn tamper(&self, statement: &'static str) -> Result<(), sqlx::Error> {
        match &self.write {
            Pool::Sqlite(pool, _) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
            Pool::Postgres(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
        }
    }
}
