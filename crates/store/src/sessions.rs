//! The rows of sessions: which owner has which sandbox. Each owner has one live row, which is written before its
//! sandbox is created.

use isopod_wire::SandboxId;
use sqlx::AssertSqlSafe;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{Row, query};
use crate::secrets::new_uuid;
use crate::{Owner, OwnerKind};

/// A session that has not ended.
#[derive(Clone, Debug)]
pub struct SessionRow {
    pub id: i64,
    pub team: TeamId,
    pub owner: Owner,
    /// Whether its sandbox is being removed.
    pub is_ending: bool,
    /// The current sandbox, or the last one.
    pub sandbox: Option<SandboxId>,
    pub restarts: u32,
}

const COLUMNS: &str = "id, team, kind, owner, state, sandbox, restarts, server";

impl Store {
    /// The owner's session. Starts one if there is none. Idempotent.
    pub async fn open_session(&self, team: &TeamId, owner: &Owner) -> Result<SessionRow, StoreError> {
        let failed = StoreError::doing("open a session");
        query(
            "INSERT INTO sessions (team, kind, owner, state, created_at, server) VALUES (?, ?, ?, 'live', ?, ?) \
             ON CONFLICT DO NOTHING",
        )
        .bind(&team.0)
        .bind(owner.kind().text())
        .bind(owner.id())
        .bind(Timestamp::now().0)
        .bind(self.server())
        .execute(&self.write)
        .await
        .map_err(&failed)?;
        let found = self.find_session_of(team, owner).await?;
        found.ok_or_else(|| failed(sqlx::Error::RowNotFound))
    }

    /// The owner's session that has not ended. Returns an error if it is on another server.
    pub async fn find_session_of(&self, team: &TeamId, owner: &Owner) -> Result<Option<SessionRow>, StoreError> {
        let statement =
            format!("SELECT {COLUMNS} FROM sessions WHERE team = ? AND kind = ? AND owner = ? AND state <> 'ended'");
        let row = query(AssertSqlSafe(statement))
            .bind(&team.0)
            .bind(owner.kind().text())
            .bind(owner.id())
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("find a session"))?;
        let Some(row) = row else { return Ok(None) };
        self.check_server(row.get(7)).await?;
        read_row(&row).map(Some)
    }

    /// All sessions of this server that have not ended.
    pub async fn open_sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM sessions WHERE state <> 'ended' AND server = ? ORDER BY id");
        let rows = query(AssertSqlSafe(statement))
            .bind(self.server())
            .fetch_all(&self.write)
            .await
            .map_err(StoreError::doing("read the sessions"))?;
        rows.iter().map(read_row).collect()
    }

    /// Records that the session has this sandbox now.
    pub async fn attach_session(&self, id: i64, sandbox: &SandboxId, restarts: u32) -> Result<(), StoreError> {
        query("UPDATE sessions SET sandbox = ?, restarts = ? WHERE id = ? AND state = 'live'")
            .bind(sandbox.as_str())
            .bind(restarts)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the sandbox of a session"))?;
        Ok(())
    }

    /// Records that the session's sandbox is being removed. This cannot be undone.
    pub async fn begin_ending_session(&self, id: i64) -> Result<(), StoreError> {
        query("UPDATE sessions SET state = 'ending' WHERE id = ? AND state = 'live'")
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record that a session ends"))?;
        Ok(())
    }

    /// Records that the sandbox is gone, and deletes the records of its files.
    pub async fn end_session(&self, row: &SessionRow) -> Result<(), StoreError> {
        let failed = StoreError::doing("record that a session has ended");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query("UPDATE sessions SET state = 'ended', ended_at = ? WHERE id = ?")
            .bind(Timestamp::now().0)
            .bind(row.id)
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        if let Some(sandbox) = &row.sandbox {
            query("DELETE FROM session_files WHERE sandbox = ?")
                .bind(sandbox.as_str())
                .execute(&mut transaction)
                .await
                .map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)
    }

    /// Claims a directory that has no team in its name. The first team that asks owns it. Returns whether that is this
    /// team.
    pub async fn claim_run_directory(&self, team: &TeamId, run: &str) -> Result<bool, StoreError> {
        let failed = StoreError::doing("record the owner of a run's directory");
        query("INSERT INTO run_directories (run, team) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind(run)
            .bind(&team.0)
            .execute(&self.write)
            .await
            .map_err(&failed)?;
        let row = query("SELECT team FROM run_directories WHERE run = ?")
            .bind(run)
            .fetch_one(&self.write)
            .await
            .map_err(&failed)?;
        Ok(row.get::<&str>(0) == team.0)
    }

    /// The id by which others know this server. It stays the same as long as the file does, or the state directory if
    /// servers share a database.
    pub async fn server_identity(&self) -> Result<String, StoreError> {
        if self.is_shared() {
            return Ok(self.server().to_owned());
        }
        let failed = StoreError::doing("read the id of this server");
        query("INSERT INTO server_identity (only_one, id) VALUES (1, ?) ON CONFLICT DO NOTHING")
            .bind(new_uuid())
            .execute(&self.write)
            .await
            .map_err(&failed)?;
        let row = query("SELECT id FROM server_identity").fetch_one(&self.write).await.map_err(&failed)?;
        Ok(row.get(0))
    }
}

fn read_row(row: &Row) -> Result<SessionRow, StoreError> {
    let corrupt = |what, value: &str| StoreError::Corrupt { what, value: value.to_owned() };
    let (kind, owner): (&str, &str) = (row.get(2), row.get(3));
    let parsed = OwnerKind::parse(kind).and_then(|kind| Owner::parse(kind, owner).ok());
    let sandbox: Option<&str> = row.get(5);
    let sandbox = sandbox.map(|text| text.parse().map_err(|_| corrupt("a session's sandbox", text))).transpose()?;
    Ok(SessionRow {
        id: row.get(0),
        team: TeamId(row.get(1)),
        owner: parsed.ok_or_else(|| corrupt("a session's owner", owner))?,
        is_ending: row.get::<&str>(4) == "ending",
        sandbox,
        restarts: row.get(6),
    })
}
