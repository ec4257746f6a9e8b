//! Short URLs that lead to a port of a sandbox: `/s/{id}`.

use std::num::NonZeroU32;

use isopod_wire::SandboxId;

use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, Transaction, query};
use crate::service::{QuotaExceeded, QuotaOwner};
use crate::{Store, StoreError, TeamId};

/// A short URL. Its target is not recorded as a URL, so it can only ever lead to the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortUrl {
    /// Seven hexadecimal digits.
    pub id: String,
    pub team: TeamId,
    /// The backend's id of the sandbox.
    pub sandbox: SandboxId,
    /// The agent that owns the sandbox.
    pub agent: Option<String>,
    pub port: u16,
    /// The path with its query, from the first slash.
    pub path: String,
    /// The network of the client that created it.
    pub created_from: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// When its owner removed it.
    pub removed_at: Option<Timestamp>,
}

impl ShortUrl {
    /// Whether it leads somewhere at this time.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.removed_at.is_none() && self.expires_at > now
    }
}

/// How many short URLs there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortUrlLimits {
    /// Of a team, at the same time.
    pub live: u32,
    /// Created by a team within a day.
    pub per_day: u32,
    /// Created from one network within a day, whichever team's key it uses.
    pub per_address_per_day: Option<NonZeroU32>,
}

/// Whether a short URL was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShortUrlClaim {
    Recorded,
    /// Another one has this id.
    IdTaken,
    Exceeded(QuotaExceeded),
    /// The client's network has reached its daily limit, and may create one again at this time.
    TooManyFromAddress {
        limit: NonZeroU32,
        until: Timestamp,
    },
}

const COLUMNS: &str = "id, team, sandbox, agent, port, path, created_from, created_at, expires_at, removed_at";
const DAY_MS: i64 = 24 * 3_600_000;

impl Store {
    /// Records a short URL, if its team may have another one and its client may create another one.
    pub async fn insert_short_url(&self, row: &ShortUrl, limits: ShortUrlLimits) -> Result<ShortUrlClaim, StoreError> {
        let failed = StoreError::doing("record a short URL");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        // Counting and inserting must not interleave with those of another server.
        transaction.lock(&format!("short URLs of {}", row.team.0)).await.map_err(&failed)?;
        if let Some(found) = exceeded(&mut transaction, row, limits).await.map_err(&failed)? {
            return Ok(ShortUrlClaim::Exceeded(found));
        }
        if let (Some(from), Some(limit)) = (&row.created_from, limits.per_address_per_day) {
            // Another team may use the same address. The lock of the team always comes first.
            transaction.lock(&format!("short URLs from {from}")).await.map_err(&failed)?;
            if let Some(until) = full_until(&mut transaction, from, limit, row.created_at).await.map_err(&failed)? {
                return Ok(ShortUrlClaim::TooManyFromAddress { limit, until });
            }
        }
        let mut insert = QueryBuilder::new("INSERT INTO short_urls (");
        insert.push(COLUMNS).push(") VALUES (").push_bind(&row.id);
        insert.push(", ").push_bind(&row.team.0).push(", ").push_bind(row.sandbox.as_str());
        insert.push(", ").push_bind(&row.agent).push(", ").push_bind(i64::from(row.port));
        insert.push(", ").push_bind(&row.path).push(", ").push_bind(&row.created_from);
        insert.push(", ").push_bind(row.created_at.0);
        insert.push(", ").push_bind(row.expires_at.0).push(", ").push_bind(row.removed_at.map(|at| at.0));
        insert.push(") ON CONFLICT DO NOTHING");
        let done = insert.build().execute(&mut transaction).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(if done.rows_affected() > 0 { ShortUrlClaim::Recorded } else { ShortUrlClaim::IdTaken })
    }

    /// Finds a short URL, also one that has ended, whichever team owns it.
    pub async fn find_short_url(&self, id: &str) -> Result<Option<ShortUrl>, StoreError> {
        let mut select = select();
        select.push("id = ").push_bind(id);
        let row = select.build().fetch_optional(&self.read).await.map_err(StoreError::doing("read a short URL"))?;
        row.as_ref().map(read).transpose()
    }

    /// The live short URLs of a team, or of all teams, newest first.
    pub async fn list_short_urls(
        &self,
        team: Option<&TeamId>,
        agent: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ShortUrl>, StoreError> {
        let mut select = select();
        select.push("removed_at IS NULL AND expires_at > ").push_bind(Timestamp::now().0);
        if let Some(team) = team {
            select.push(" AND team = ").push_bind(&team.0);
        }
        if let Some(agent) = agent {
            select.push(" AND agent = ").push_bind(agent);
        }
        select.push(" ORDER BY created_at DESC, id LIMIT ").push_bind(limit);
        let rows = select.build().fetch_all(&self.read).await.map_err(StoreError::doing("list short URLs"))?;
        rows.iter().map(read).collect()
    }

    /// Ends a short URL before its time.
    pub async fn remove_short_url(&self, id: &str) -> Result<(), StoreError> {
        query("UPDATE short_urls SET removed_at = ? WHERE id = ? AND removed_at IS NULL")
            .bind(Timestamp::now().0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("remove a short URL"))?;
        Ok(())
    }

    /// Takes back a short URL that nobody has seen. It does not count for any limit.
    pub async fn discard_short_url(&self, id: &str) -> Result<(), StoreError> {
        let discard = query("DELETE FROM short_urls WHERE id = ?").bind(id).execute(&self.write);
        discard.await.map_err(StoreError::doing("discard a short URL"))?;
        Ok(())
    }

    /// Deletes short URLs that expired before this time.
    pub async fn prune_short_urls(&self, before: Timestamp) -> Result<(), StoreError> {
        let prune = query("DELETE FROM short_urls WHERE expires_at < ?").bind(before.0).execute(&self.write);
        prune.await.map_err(StoreError::doing("delete old short URLs"))?;
        Ok(())
    }
}

/// The limit that one more short URL would exceed.
async fn exceeded(
    transaction: &mut Transaction,
    row: &ShortUrl,
    limits: ShortUrlLimits,
) -> Result<Option<QuotaExceeded>, sqlx::Error> {
    let now = row.created_at.0;
    let live = query("SELECT count(*) FROM short_urls WHERE team = ? AND removed_at IS NULL AND expires_at > ?");
    let live: i64 = live.bind(&row.team.0).bind(now).fetch_one(&mut *transaction).await?.get(0);
    let today = query("SELECT count(*) FROM short_urls WHERE team = ? AND created_at > ?");
    let today: i64 = today.bind(&row.team.0).bind(now - DAY_MS).fetch_one(&mut *transaction).await?.get(0);
    let counts = [("short_urls", limits.live, live), ("short_urls_per_day", limits.per_day, today)];
    let over = counts.into_iter().find(|(_, limit, used)| *used >= i64::from(*limit));
    Ok(over.map(|(what, limit, used)| QuotaExceeded { owner: QuotaOwner::Team, what, limit: limit.into(), used }))
}

/// When a network that has reached its limit may create a short URL again.
async fn full_until(
    transaction: &mut Transaction,
    from: &str,
    limit: NonZeroU32,
    now: Timestamp,
) -> Result<Option<Timestamp>, sqlx::Error> {
    // Of the newest ones, as many as are allowed, the oldest. When it is a day old, there is room for another one.
    let oldest = query(
        "SELECT created_at FROM short_urls WHERE created_from = ? AND created_at > ? \
         ORDER BY created_at DESC LIMIT 1 OFFSET ?",
    );
    let oldest = oldest.bind(from).bind(now.0 - DAY_MS).bind(i64::from(limit.get()) - 1);
    let row = oldest.fetch_optional(transaction).await?;
    Ok(row.map(|row| Timestamp(row.get::<i64>(0) + DAY_MS)))
}

fn select<'q>() -> QueryBuilder<'q> {
    let mut select = QueryBuilder::new("SELECT ");
    select.push(COLUMNS).push(" FROM short_urls WHERE ");
    select
}

fn read(row: &Row) -> Result<ShortUrl, StoreError> {
    let (sandbox, port) = (row.get::<&str>(2), row.get::<i64>(4));
    let corrupt = |value: &dyn ToString| StoreError::Corrupt { what: "a short URL", value: value.to_string() };
    Ok(ShortUrl {
        id: row.get(0),
        team: TeamId(row.get(1)),
        sandbox: sandbox.parse().map_err(|_| corrupt(&sandbox))?,
        agent: row.get(3),
        port: u16::try_from(port).map_err(|_| corrupt(&port))?,
        path: row.get(5),
        created_from: row.get(6),
        created_at: Timestamp(row.get(7)),
        expires_at: Timestamp(row.get(8)),
        removed_at: row.get::<Option<i64>>(9).map(Timestamp),
    })
}
