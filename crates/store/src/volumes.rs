//! Volumes. Each has a name for people, a permanent id, and a token that gives access to its contents.

use isopod_wire::node::Secret;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{Row, query};

/// A volume of a team.
#[derive(Clone, Debug)]
pub struct Volume {
    pub id: String,
    pub team: TeamId,
    pub name: String,
    pub token: Secret,
}

impl Store {
    /// Records a volume. Returns false if the team has one with that name.
    pub async fn insert_volume(&self, volume: &Volume) -> Result<bool, StoreError> {
        let done = query(
            "INSERT INTO volumes (id, team, name, token, created_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&volume.id)
        .bind(&volume.team.0)
        .bind(&volume.name)
        .bind(&volume.token.0)
        .bind(Timestamp::now().0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a volume"))?;
        Ok(done.rows_affected() > 0)
    }

    pub async fn list_volumes(&self, team: &TeamId) -> Result<Vec<Volume>, StoreError> {
        let rows =
            query("SELECT id, team, name, token FROM volumes WHERE team = ? AND removing = 0 ORDER BY created_at, id")
                .bind(&team.0)
                .fetch_all(&self.write)
                .await
                .map_err(StoreError::doing("list volumes"))?;
        Ok(rows.iter().map(read_volume).collect())
    }

    /// The team's volume with this id.
    pub async fn find_volume(&self, team: &TeamId, id: &str) -> Result<Option<Volume>, StoreError> {
        let found = self.find_any_volume(id).await?;
        Ok(found.filter(|volume| volume.team == *team))
    }

    /// Whether the token belongs to a volume.
    pub async fn has_volume_token(&self, token: &str) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM volumes WHERE token = ? AND removing = 0")
            .bind(token)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("look up a volume's token"))?;
        Ok(row.is_some())
    }

    /// Finds a volume of any team. The caller's token decides about the access.
    pub async fn find_any_volume(&self, id: &str) -> Result<Option<Volume>, StoreError> {
        let row = query("SELECT id, team, name, token FROM volumes WHERE id = ? AND removing = 0")
            .bind(id)
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("look up a volume"))?;
        Ok(row.as_ref().map(read_volume))
    }

    pub async fn find_volume_named(&self, team: &TeamId, name: &str) -> Result<Option<Volume>, StoreError> {
        let row = query("SELECT id, team, name, token FROM volumes WHERE team = ? AND name = ? AND removing = 0")
            .bind(&team.0)
            .bind(name)
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("look up a volume"))?;
        Ok(row.as_ref().map(read_volume))
    }

    /// Marks a volume as being removed, so that it can no longer be found. Returns whether it existed.
    pub async fn begin_removing_volume(&self, team: &TeamId, id: &str) -> Result<bool, StoreError> {
        let done = query("UPDATE volumes SET removing = 1, token = '' WHERE team = ? AND id = ? AND removing = 0")
            .bind(&team.0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the removal of a volume"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Deletes the record after the files are removed.
    pub async fn forget_volume(&self, id: &str) -> Result<(), StoreError> {
        query("DELETE FROM volumes WHERE id = ? AND removing = 1")
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("delete a volume"))?;
        Ok(())
    }

    /// The volumes whose removal has begun.
    pub async fn volumes_to_remove(&self) -> Result<Vec<String>, StoreError> {
        let rows = query("SELECT id FROM volumes WHERE removing = 1 LIMIT 1000")
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("list removed volumes"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

fn read_volume(row: &Row) -> Volume {
    Volume { id: row.get(0), team: TeamId(row.get(1)), name: row.get(2), token: Secret(row.get(3)) }
}
