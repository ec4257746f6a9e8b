//! Webhooks and the deliveries to them.

use std::collections::HashSet;
use std::time::Duration;

use isopod_wire::node::Secret;
use sqlx::AssertSqlSafe;

use super::{EventType, Store, StoreError, TeamId};
use crate::clock::{Timestamp, millis};
use crate::database::POSTGRES_NOW;
use crate::database::{Pool, QueryBuilder, Row, query};

/// A subscription to events.
#[derive(Clone, Debug)]
pub struct Webhook {
    pub id: String,
    pub team: TeamId,
    pub name: String,
    pub url: String,
    pub enabled: bool,
    pub events: Vec<EventType>,
    pub secret: Secret,
    pub created_at: Timestamp,
}

/// One event on its way to one webhook.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: String,
    pub team: TeamId,
    pub webhook: String,
    pub url: String,
    pub secret: Secret,
    pub body: String,
    pub attempts: u32,
}

/// How long a delivery is reserved for a server. It is longer than a server needs for everything that it takes at once.
const TAKEN_FOR: Duration = Duration::from_secs(300);

const COLUMNS: &str = "id, team, name, url, enabled, events, secret, created_at";

impl Store {
    /// Records a new or changed webhook.
    pub async fn save_webhook(&self, webhook: &Webhook) -> Result<(), StoreError> {
        query(
            "INSERT INTO webhooks (id, team, name, url, enabled, events, secret, created_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name, \
             url = excluded.url, enabled = excluded.enabled, events = excluded.events, secret = excluded.secret",
        )
        .bind(&webhook.id)
        .bind(&webhook.team.0)
        .bind(&webhook.name)
        .bind(&webhook.url)
        .bind(webhook.enabled)
        .bind(serde_json::Value::from_iter(webhook.events.iter().map(|kind| kind.text())).to_string())
        .bind(&webhook.secret.0)
        .bind(webhook.created_at.0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a webhook"))?;
        Ok(())
    }

    pub async fn list_webhooks(&self, team: &TeamId) -> Result<Vec<Webhook>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM webhooks WHERE team = ").push_bind(&team.0);
        query.push(" ORDER BY created_at, id");
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("list webhooks"))?;
        Ok(rows.iter().map(read_webhook).collect())
    }

    pub async fn find_webhook(&self, team: &TeamId, id: &str) -> Result<Option<Webhook>, StoreError> {
        Ok(self.list_webhooks(team).await?.into_iter().find(|webhook| webhook.id == id))
    }

    /// Removes a webhook and its pending deliveries.
    pub async fn remove_webhook(&self, team: &TeamId, id: &str) -> Result<bool, StoreError> {
        let done = query("DELETE FROM webhooks WHERE team = ? AND id = ?")
            .bind(&team.0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("remove a webhook"))?;
        Ok(done.rows_affected() > 0)
    }

    /// The teams whose webhooks have due deliveries, the longest due first.
    pub async fn teams_with_due_deliveries(&self, now: Timestamp) -> Result<Vec<TeamId>, StoreError> {
        let text = |now: &str| {
            let due = due_deliveries(now);
            AssertSqlSafe(format!("SELECT w.team {due} GROUP BY w.team ORDER BY min(d.next_at)"))
        };
        let asked = match &self.write {
            Pool::Sqlite(..) => query(text("?")).bind(now.0).fetch_all(&self.read).await,
            Pool::Postgres(_) => query(text(POSTGRES_NOW)).fetch_all(&self.read).await,
        };
        let rows = asked.map_err(StoreError::doing("list the teams with due deliveries"))?;
        Ok(rows.iter().map(|row| TeamId(row.get(0))).collect())
    }

    /// The team's due deliveries that are not `under_way`, the longest due first. If there are several servers, each
    /// gets different deliveries: a taken delivery becomes due again only after a while, in case that server is gone by
    /// then. Servers that share a database use its clock.
    pub async fn due_deliveries(
        &self,
        team: &TeamId,
        now: Timestamp,
        limit: usize,
        under_way: &HashSet<String>,
    ) -> Result<Vec<Delivery>, StoreError> {
        let due = |now: &str| format!("{} AND w.team = ? ORDER BY d.next_at LIMIT ?", due_deliveries(now));
        let shown = "d.id, d.webhook, w.url, w.secret, d.body, d.attempts";
        // In SQLite nothing marks a delivery as taken, so the result may include those that are under way.
        let most = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let asked = match &self.write {
            Pool::Sqlite(..) => {
                let text = format!("SELECT {shown} {}", due("?"));
                let limit = most(limit.saturating_add(under_way.len()));
                query(AssertSqlSafe(text)).bind(now.0).bind(&team.0).bind(limit).fetch_all(&self.read).await
            }
            Pool::Postgres(_) => {
                let text = format!(
                    "WITH due AS (SELECT d.id {} FOR UPDATE OF d SKIP LOCKED) \
                     UPDATE webhook_deliveries d SET next_at = {POSTGRES_NOW} + ? FROM webhooks w \
                     WHERE d.id IN (SELECT id FROM due) AND w.id = d.webhook RETURNING {shown}",
                    due(POSTGRES_NOW)
                );
                let taken = query(AssertSqlSafe(text)).bind(&team.0).bind(most(limit)).bind(millis(TAKEN_FOR));
                taken.fetch_all(&self.write).await
            }
        };
        let rows = asked.map_err(StoreError::doing("read due deliveries"))?;
        Ok(rows
            .iter()
            .map(|row| Delivery {
                id: row.get(0),
                team: team.clone(),
                webhook: row.get(1),
                url: row.get(2),
                secret: Secret(row.get(3)),
                body: row.get(4),
                attempts: row.get(5),
            })
            .filter(|delivery| !under_way.contains(&delivery.id))
            .take(limit)
            .collect())
    }

    /// Records an attempt. `next` is the time of the next attempt, or `None` if there is nothing more to do.
    pub async fn record_attempt(
        &self,
        delivery: &Delivery,
        next: Option<Timestamp>,
        error: Option<String>,
    ) -> Result<(), StoreError> {
        let now = Timestamp::now();
        let next_at = next.unwrap_or(now);
        let (text, next_at) = match &self.write {
            Pool::Sqlite(..) => ("?".to_owned(), next_at.0),
            Pool::Postgres(_) => (format!("{POSTGRES_NOW} + ?"), millis(now.until(next_at))),
        };
        query(AssertSqlSafe(format!(
            "UPDATE webhook_deliveries SET attempts = attempts + 1, next_at = {text}, done_at = ?, last_error = ? \
             WHERE id = ?"
        )))
        .bind(next_at)
        .bind(next.is_none().then_some(now.0))
        .bind(error)
        .bind(&delivery.id)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a delivery"))?;
        Ok(())
    }
}

/// The deliveries that are due at a time, as part of a statement.
fn due_deliveries(now: &str) -> String {
    format!(
        "FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook \
         WHERE d.done_at IS NULL AND d.next_at <= {now} AND w.enabled = 1"
    )
}

fn read_webhook(row: &Row) -> Webhook {
    let events: Vec<String> = serde_json::from_str(row.get(5)).unwrap_or_default();
    Webhook {
        id: row.get(0),
        team: TeamId(row.get(1)),
        name: row.get(2),
        url: row.get(3),
        enabled: row.get(4),
        events: events.iter().filter_map(|text| EventType::parse(text)).collect(),
        secret: Secret(row.get(6)),
        created_at: Timestamp(row.get(7)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Event;
    use crate::testing::postgres;

    const SKEW: Duration = Duration::from_secs(3600);

    /// Clock skew: a server whose clock is an hour ahead does not repeat the deliveries of another one, and its own
    /// records are not late.
    #[tokio::test]
    async fn a_server_whose_clock_is_wrong_delivers_nothing_twice_and_nothing_late() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let url = postgres::database_for(dirs[0].path()).await;
        let right = Store::connect(&url, dirs[0].path(), "right").await.unwrap();
        let ahead = Store::connect(&url, dirs[1].path(), "ahead").await.unwrap();
        let team = right.ensure_team().await.unwrap();
        let now = Timestamp::now();
        let hook = Webhook {
            id: "hook".to_owned(),
            team: team.clone(),
            name: "mine".to_owned(),
            url: "http://localhost".to_owned(),
            enabled: true,
            events: vec![EventType::Created],
            secret: Secret("secret".to_owned()),
            created_at: now,
        };
        right.save_webhook(&hook).await.unwrap();
        let event = |id: &str, at| Event {
            id: id.to_owned(),
            team: team.clone(),
            sandbox: "i1".to_owned(),
            execution: None,
            template: "base".to_owned(),
            kind: EventType::Created.text().to_owned(),
            at,
            data: json!({}),
        };
        right.insert_event(&event("one", now)).await.unwrap();
        ahead.insert_event(&event("two", now.plus(SKEW))).await.unwrap();
        let none = HashSet::new();
        let taken = right.due_deliveries(&team, Timestamp::now(), 10, &none).await.unwrap();
        assert_eq!(taken.len(), 2, "what a server ahead of time recorded is due now");
        assert!(
            ahead.due_deliveries(&team, now.plus(SKEW), 10, &none).await.unwrap().is_empty(),
            "both are on their way"
        );
        // One delivery is to be retried at once, by any server.
        right.record_attempt(&taken[0], Some(Timestamp::now()), None).await.unwrap();
        right.record_attempt(&taken[1], None, None).await.unwrap();
        assert_eq!(ahead.due_deliveries(&team, now.plus(SKEW), 10, &none).await.unwrap().len(), 1);
    }
}
