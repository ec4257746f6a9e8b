//! Teams that an operator names, and their members.

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{Row, query};

/// A team with the members that are recorded here.
#[derive(Clone, Debug)]
pub struct TeamRow {
    pub id: TeamId,
    pub name: String,
    pub created_at: Timestamp,
}

impl Store {
    /// The name of the team with this id, if it exists.
    pub async fn find_team(&self, id: &str) -> Result<Option<String>, StoreError> {
        let row = query("SELECT name FROM teams WHERE id = ?")
            .bind(id)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("look up a team"))?;
        Ok(row.map(|row| row.get(0)))
    }

    pub async fn list_teams(&self) -> Result<Vec<TeamRow>, StoreError> {
        let rows = query("SELECT id, name, created_at FROM teams ORDER BY created_at, id")
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("list teams"))?;
        let read = |row: &Row| TeamRow { id: TeamId(row.get(0)), name: row.get(1), created_at: Timestamp(row.get(2)) };
        Ok(rows.iter().map(read).collect())
    }

    /// Makes sure that a team with this id and name exists.
    ///
    /// The team that was created first owns the keys of the command line, so a new team is always the younger one, even
    /// if the clock was set back or both were created within a millisecond.
    pub async fn ensure_team_named(&self, id: &str, name: &str) -> Result<(), StoreError> {
        query(
            "INSERT INTO teams (id, name, created_at) \
             SELECT ?, ?, CASE WHEN newest >= ? THEN newest + 1 ELSE ? END \
             FROM (SELECT COALESCE(MAX(created_at), 0) AS newest FROM teams) AS others WHERE true \
             ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        )
        .bind(id)
        .bind(name)
        .bind(Timestamp::now().0)
        .bind(Timestamp::now().0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a team"))?;
        Ok(())
    }

    pub async fn is_member(&self, team: &str, member: &str) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM team_members WHERE team = ? AND member = ?")
            .bind(team)
            .bind(member)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("look up a member"))?;
        Ok(row.is_some())
    }

    /// Adds a member to a team. Returns false if the team does not exist.
    pub async fn add_member(&self, team: &str, member: &str) -> Result<bool, StoreError> {
        if self.find_team(team).await?.is_none() {
            return Ok(false);
        }
        query("INSERT INTO team_members (team, member, added_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
            .bind(team)
            .bind(member)
            .bind(Timestamp::now().0)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record a member"))?;
        Ok(true)
    }

    /// Removes a member from a team. Returns false if they were not a member.
    pub async fn remove_member(&self, team: &str, member: &str) -> Result<bool, StoreError> {
        let done = query("DELETE FROM team_members WHERE team = ? AND member = ?")
            .bind(team)
            .bind(member)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("remove a member"))?;
        Ok(done.rows_affected() > 0)
    }
}
