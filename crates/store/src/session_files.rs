//! What is known about the files of a sandbox, so that a restarted server need not send and fetch all of them again.

use isopod_wire::SandboxId;

use super::{Store, StoreError};
use crate::database::query;
use crate::{FileFacts, FileHash, FileRecord, Side};

impl Store {
    /// All records of a sandbox.
    pub async fn session_files(&self, sandbox: &SandboxId) -> Result<Vec<FileRecord>, StoreError> {
        let statement = "SELECT side, path, size, modified, changed, inode, hash FROM session_files WHERE sandbox = ?";
        let rows = query(statement)
            .bind(sandbox.as_str())
            .fetch_all(&self.write)
            .await
            .map_err(StoreError::doing("read the files of a session"))?;
        let read = rows.iter().map(|row| FileRecord {
            side: if row.get::<&str>(0) == INPUT { Side::Input } else { Side::Inside },
            path: row.get(1),
            facts: Some(FileFacts {
                size: row.get::<i64>(2).cast_unsigned(),
                modified: row.get(3),
                changed: row.get(4),
                inode: row.get::<i64>(5).cast_unsigned(),
            }),
            hash: row.get::<Option<&[u8]>>(6).and_then(|hash| FileHash::try_from(hash).ok()),
        });
        Ok(read.collect())
    }

    /// Deletes the records of sandboxes that no session has any more.
    pub async fn forget_lost_session_files(&self) -> Result<(), StoreError> {
        query(
            "DELETE FROM session_files WHERE sandbox NOT IN \
             (SELECT sandbox FROM sessions WHERE state <> 'ended' AND sandbox IS NOT NULL)",
        )
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("delete the file records of lost sandboxes"))?;
        Ok(())
    }

    /// Records changes. A record without facts means that the file was deleted.
    pub async fn save_session_files(&self, sandbox: &SandboxId, changes: &[FileRecord]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let failed = StoreError::doing("record the files of a session");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        for change in changes {
            let side = if change.side == Side::Input { INPUT } else { INSIDE };
            let query = match &change.facts {
                None => query("DELETE FROM session_files WHERE sandbox = ? AND side = ? AND path = ?")
                    .bind(sandbox.as_str())
                    .bind(side)
                    .bind(&change.path),
                Some(facts) => query(
                    "INSERT INTO session_files (sandbox, side, path, size, modified, changed, inode, hash) \
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sandbox, side, path) DO UPDATE SET \
                     size = excluded.size, modified = excluded.modified, changed = excluded.changed, \
                     inode = excluded.inode, hash = excluded.hash",
                )
                .bind(sandbox.as_str())
                .bind(side)
                .bind(&change.path)
                .bind(facts.size.cast_signed())
                .bind(facts.modified)
                .bind(facts.changed)
                .bind(facts.inode.cast_signed())
                .bind(change.hash.as_ref().map(|hash| hash.as_slice())),
            };
            query.execute(&mut transaction).await.map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)
    }
}

const INPUT: &str = "input";
const INSIDE: &str = "inside";
