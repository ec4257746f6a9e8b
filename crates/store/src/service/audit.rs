//! The audit log: one line per operation, in one chain of hashes per server. A changed, removed or inserted line breaks
//! the chain at that point. To notice lines that were cut off at the end, keep the last hash elsewhere.

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, Transaction, query};
use crate::{Store, StoreError, TeamId};

/// An operation that was done or refused.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub team: TeamId,
    /// Who did it: `key:…`, `user:…` or `isopod` itself.
    pub actor: String,
    /// What was done, for example `sandbox.execute`.
    pub action: String,
    pub sandbox: Option<String>,
    pub agent: Option<String>,
    pub task: Option<String>,
    /// The address of the client.
    pub source: Option<String>,
    /// The outcome as an HTTP status.
    pub status: u16,
    /// The stable error code of a refusal.
    pub code: Option<String>,
    pub micros: i64,
}

/// A line in the form that is shown and exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditLine {
    #[serde(flatten)]
    body: Body,
    /// The hash of this line and of the hash of the line before it, in hexadecimal.
    pub hash: String,
}

/// The content that the hash covers, in this order of fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub(super) struct Body {
    server: String,
    number: i64,
    #[schema(format = DateTime)]
    at: String,
    team: String,
    actor: String,
    action: String,
    sandbox: Option<String>,
    agent: Option<String>,
    task: Option<String>,
    source: Option<String>,
    status: i64,
    code: Option<String>,
    micros: i64,
}

/// The current end of a server's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    server: String,
    number: i64,
    hash: [u8; 32],
}

/// The result of verifying a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = VerifiedChain)]
pub struct Verified {
    /// The server that the chain belongs to.
    pub server: String,
    /// The number of valid lines, from the first one on.
    pub lines: i64,
    /// The hash of the last valid line. Keep it to notice lines that are cut off later.
    pub head: String,
    /// The number of the first line that breaks the chain.
    pub broken_at: Option<i64>,
}

/// The chain of one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditChain {
    pub server: String,
    /// The number of lines.
    pub lines: i64,
}

/// Which lines to show. Newest first, unless they are exported.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    pub team: Option<TeamId>,
    pub agent: Option<String>,
    pub sandbox: Option<String>,
    pub action: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub limit: u32,
}

const COLUMNS: &str =
    "server, number, at, team, actor, action, sandbox, agent, task, source, status, code, micros, hash";

impl AuditLine {
    /// The number of the line in its chain, counted from 1.
    pub fn number(&self) -> i64 {
        self.body.number
    }

    /// The columns of a table: number, time, actor, action, sandbox, outcome.
    pub fn cells(&self) -> [String; 6] {
        let body = &self.body;
        let sandbox = body.sandbox.clone().unwrap_or_default();
        let outcome = body.code.clone().unwrap_or_else(|| body.status.to_string());
        [body.number.to_string(), body.at.clone(), body.actor.clone(), body.action.clone(), sandbox, outcome]
    }
}

impl Body {
    fn hash_after(&self, before: &[u8; 32]) -> [u8; 32] {
        let text = serde_json::to_vec(self).expect("strings and numbers always serialize to JSON");
        Sha256::new().chain_update(before).chain_update(text).finalize().into()
    }
}

impl ChainEnd {
    pub(super) fn server(&self) -> &str {
        &self.server
    }
}

/// The next line of the chain, and the new end of the chain.
pub(super) fn next(end: &ChainEnd, entry: &AuditEntry) -> (Body, ChainEnd) {
    // PostgreSQL's text has no NUL, and the hash must cover the text that is read back.
    let text = |text: &str| text.replace('\0', "\u{fffd}");
    let optional = |value: &Option<String>| value.as_deref().map(text);
    let body = Body {
        server: end.server.clone(),
        number: end.number + 1,
        at: entry.at.to_rfc3339(),
        team: entry.team.0.clone(),
        actor: text(&entry.actor),
        action: text(&entry.action),
        sandbox: optional(&entry.sandbox),
        agent: optional(&entry.agent),
        task: optional(&entry.task),
        source: optional(&entry.source),
        status: i64::from(entry.status),
        code: optional(&entry.code),
        micros: entry.micros,
    };
    let hash = body.hash_after(&end.hash);
    let made = ChainEnd { server: end.server.clone(), number: body.number, hash };
    (body, made)
}

pub(super) async fn insert(
    transaction: &mut Transaction,
    end: &mut ChainEnd,
    entry: &AuditEntry,
) -> Result<(), sqlx::Error> {
    let (body, made) = next(end, entry);
    query(
        "INSERT INTO audit (server, number, at, team, actor, action, sandbox, agent, task, source, status, code, \
         micros, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&body.server)
    .bind(body.number)
    .bind(entry.at.0)
    .bind(&body.team)
    .bind(&body.actor)
    .bind(&body.action)
    .bind(&body.sandbox)
    .bind(&body.agent)
    .bind(&body.task)
    .bind(&body.source)
    .bind(body.status)
    .bind(&body.code)
    .bind(body.micros)
    .bind(made.hash.as_slice())
    .execute(transaction)
    .await?;
    *end = made;
    Ok(())
}

impl Store {
    /// The current end of this server's chain.
    pub async fn chain_end(&self, server: &str) -> Result<ChainEnd, StoreError> {
        let row = query("SELECT number, hash FROM audit WHERE server = ? ORDER BY number DESC LIMIT 1")
            .bind(server)
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("read the end of the audit log"))?;
        let start = ChainEnd { server: server.to_owned(), number: 0, hash: [0; 32] };
        let Some(row) = row else { return Ok(start) };
        let hash: &[u8] = row.get(1);
        let corrupt = |_| StoreError::Corrupt { what: "the last hash of the audit", value: hex::encode(hash) };
        Ok(ChainEnd { number: row.get(0), hash: hash.try_into().map_err(corrupt)?, ..start })
    }

    pub async fn list_audit(&self, wanted: &AuditQuery) -> Result<Vec<AuditLine>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM audit WHERE 1 = 1");
        if let Some(team) = &wanted.team {
            query.push(" AND team = ").push_bind(&team.0);
        }
        let texts = [("agent", &wanted.agent), ("sandbox", &wanted.sandbox), ("action", &wanted.action)];
        for (column, value) in texts {
            if let Some(value) = value {
                query.push(" AND ").push(column).push(" = ").push_bind(value);
            }
        }
        query.push(" AND at >= ").push_bind(wanted.from.map_or(0, |at| at.0));
        query.push(" AND at <= ").push_bind(wanted.to.map_or(i64::MAX, |at| at.0));
        query.push(" ORDER BY at DESC, number DESC LIMIT ").push_bind(wanted.limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read the audit log"))?;
        Ok(rows.iter().map(read_line).collect())
    }

    /// The servers that have chains in this store.
    pub async fn audit_chains(&self) -> Result<Vec<AuditChain>, StoreError> {
        let rows = query("SELECT server, count(*) FROM audit GROUP BY server ORDER BY server")
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("list the chains of the audit log"))?;
        Ok(rows.iter().map(|row| AuditChain { server: row.get(0), lines: row.get(1) }).collect())
    }

    /// A page of an export: the lines of one chain after this number, oldest first.
    pub async fn audit_page(&self, server: &str, after: i64, limit: u32) -> Result<Vec<AuditLine>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM audit WHERE server = ").push_bind(server);
        query.push(" AND number > ").push_bind(after).push(" ORDER BY number LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read the audit log"))?;
        Ok(rows.iter().map(read_line).collect())
    }

    /// The newest lines of all chains, newest first.
    pub async fn last_audit_lines(&self, limit: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.list_audit(&AuditQuery { limit, ..AuditQuery::default() }).await
    }

    /// Recomputes a chain from its first line.
    pub async fn verify_audit(&self, server: &str) -> Result<Verified, StoreError> {
        let (mut hash, mut lines) = ([0; 32], 0);
        loop {
            let page = self.audit_page(server, lines, VERIFY_PAGE).await?;
            if page.is_empty() {
                return Ok(Verified { server: server.to_owned(), lines, head: hex::encode(hash), broken_at: None });
            }
            for line in page {
                let right = line.body.hash_after(&hash);
                if line.body.number != lines + 1 || hex::encode(right) != line.hash {
                    let broken_at = Some(lines + 1);
                    return Ok(Verified { server: server.to_owned(), lines, head: hex::encode(hash), broken_at });
                }
                (hash, lines) = (right, line.body.number);
            }
        }
    }
}

const VERIFY_PAGE: u32 = 5000;

fn read_line(row: &Row) -> AuditLine {
    AuditLine {
        body: Body {
            server: row.get(0),
            number: row.get(1),
            at: Timestamp(row.get(2)).to_rfc3339(),
            team: row.get(3),
            actor: row.get(4),
            action: row.get(5),
            sandbox: row.get(6),
            agent: row.get(7),
            task: row.get(8),
            source: row.get(9),
            status: row.get(10),
            code: row.get(11),
            micros: row.get(12),
        },
        hash: hex::encode(row.get::<&[u8]>(13)),
    }
}
