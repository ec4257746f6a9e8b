//! Which team owns which execution. Executions of other teams do not exist for the caller.

use std::time::Duration;

use isopod_wire::SandboxId;

use super::{Store, StoreError, TeamId};
use crate::ExecutionName;
use crate::clock::Timestamp;
use crate::database::query;

/// The result of claiming an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionClaim {
    Ours,
    /// It belongs to another team.
    Theirs,
    /// Its files are being removed.
    Removing,
}

/// The time of the last use is accurate to this interval.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

impl Store {
    /// Claims an execution. The first team that uses it owns it from then on.
    pub async fn claim_execution(
        &self,
        team: &TeamId,
        execution: &ExecutionName,
    ) -> Result<ExecutionClaim, StoreError> {
        if let Some(claim) = self.find_execution(team, execution).await? {
            return Ok(claim);
        }
        let now = Timestamp::now().0;
        query("INSERT INTO executions (id, team, created_at, used_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING")
            .bind(execution.as_str())
            .bind(&team.0)
            .bind(now)
            .bind(now)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record an execution"))?;
        Ok(self.find_execution(team, execution).await?.unwrap_or(ExecutionClaim::Removing))
    }

    /// Finds the owner of an execution, if it exists. Records that it was used.
    pub async fn find_execution(
        &self,
        team: &TeamId,
        execution: &ExecutionName,
    ) -> Result<Option<ExecutionClaim>, StoreError> {
        // Read through the writer, because it may have been recorded a moment ago.
        let row = query("SELECT team, removing, used_at FROM executions WHERE id = ?")
            .bind(execution.as_str())
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("look up an execution"))?;
        let Some(row) = row else { return Ok(None) };
        if row.get::<&str>(0) != team.0 {
            return Ok(Some(ExecutionClaim::Theirs));
        }
        if row.get::<bool>(1) {
            return Ok(Some(ExecutionClaim::Removing));
        }
        if Timestamp(row.get(2)).until(Timestamp::now()) >= TOUCH_EVERY {
            self.touch_execution(execution).await?;
        }
        Ok(Some(ExecutionClaim::Ours))
    }

    async fn touch_execution(&self, execution: &ExecutionName) -> Result<(), StoreError> {
        query("UPDATE executions SET used_at = ? WHERE id = ?")
            .bind(Timestamp::now().0)
            .bind(execution.as_str())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the use of an execution"))?;
        Ok(())
    }

    /// The team's executions, latest first.
    pub async fn list_executions(&self, team: &TeamId) -> Result<Vec<(String, Timestamp, Timestamp)>, StoreError> {
        let rows = query(
            "SELECT id, created_at, used_at FROM executions WHERE team = ? AND removing = 0 \
             ORDER BY created_at DESC, id LIMIT 10000",
        )
        .bind(&team.0)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("list executions"))?;
        Ok(rows.iter().map(|row| (row.get(0), Timestamp(row.get(1)), Timestamp(row.get(2)))).collect())
    }

    /// Marks an execution as being removed, so that it can no longer be used. Returns whether it existed and was last
    /// used at or before that time.
    pub async fn begin_removing_execution(
        &self,
        execution: &ExecutionName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        let done = query("UPDATE executions SET removing = 1 WHERE id = ? AND used_at <= ?")
            .bind(execution.as_str())
            .bind(unused_since.0)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the removal of an execution"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Cancels the removal, because the execution is in use.
    pub async fn keep_execution(&self, execution: &ExecutionName) -> Result<(), StoreError> {
        query("UPDATE executions SET removing = 0, used_at = ? WHERE id = ?")
            .bind(Timestamp::now().0)
            .bind(execution.as_str())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("keep an execution"))?;
        Ok(())
    }

    /// Deletes the record after the files are removed. The id can then be used again.
    pub async fn forget_execution(&self, execution: &ExecutionName) -> Result<(), StoreError> {
        query("DELETE FROM executions WHERE id = ? AND removing = 1")
            .bind(execution.as_str())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("delete an execution"))?;
        Ok(())
    }

    /// Executions that were last used before that time, and those whose removal has begun, with their teams.
    pub async fn stale_executions(&self, unused_since: Timestamp) -> Result<Vec<(TeamId, ExecutionName)>, StoreError> {
        let rows =
            query("SELECT id, team FROM executions WHERE removing = 1 OR used_at < ? ORDER BY used_at LIMIT 1000")
                .bind(unused_since.0)
                .fetch_all(&self.read)
                .await
                .map_err(StoreError::doing("list unused executions"))?;
        let names = rows.iter().map(|row| {
            let text: &str = row.get(0);
            let name = ExecutionName::parse(text)
                .map_err(|_| StoreError::Corrupt { what: "an execution id", value: text.to_owned() })?;
            Ok((TeamId(row.get(1)), name))
        });
        names.collect()
    }

    /// The sandbox that the toolkit last used for an execution.
    pub async fn toolkit_sandbox(&self, execution: &ExecutionName) -> Result<Option<String>, StoreError> {
        let row = query("SELECT sandbox FROM executions WHERE id = ?")
            .bind(execution.as_str())
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("read an execution's sandbox"))?;
        Ok(row.and_then(|row| row.get(0)))
    }

    pub async fn set_toolkit_sandbox(&self, execution: &ExecutionName, sandbox: &SandboxId) -> Result<(), StoreError> {
        query("UPDATE executions SET sandbox = ?, used_at = ? WHERE id = ?")
            .bind(sandbox.as_str())
            .bind(Timestamp::now().0)
            .bind(execution.as_str())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record an execution's sandbox"))?;
        Ok(())
    }

    /// The configuration of an execution's tools, as the client sent it.
    pub async fn toolkit_config(&self, execution: &ExecutionName) -> Result<Option<String>, StoreError> {
        let row = query("SELECT toolkit FROM executions WHERE id = ?")
            .bind(execution.as_str())
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("read the tool configuration of an execution"))?;
        Ok(row.and_then(|row| row.get(0)))
    }

    pub async fn set_toolkit_config(&self, execution: &ExecutionName, config: &str) -> Result<(), StoreError> {
        query("UPDATE executions SET toolkit = ? WHERE id = ?")
            .bind(config)
            .bind(execution.as_str())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the tool configuration of an execution"))?;
        Ok(())
    }
}
