//! The history of commands and of git operations. Commands have a table of their own.

use sqlx::AssertSqlSafe;

use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, Transaction, query};
use crate::{Store, StoreError, TeamId};

/// A command that was run.
#[derive(Clone, Debug)]
pub struct CommandRow {
    pub id: String,
    pub team: TeamId,
    /// The id of the sandbox in the service.
    pub sandbox: String,
    pub agent: Option<String>,
    pub task: Option<String>,
    pub actor: String,
    /// A line for a shell, or a JSON list.
    pub command: String,
    pub cwd: Option<String>,
    /// `exited`, `timed_out` or `failed`.
    pub outcome: &'static str,
    pub exit_code: Option<i32>,
    pub error: Option<String>,
    /// The first part of the output.
    pub stdout: String,
    pub stderr: String,
    /// The total size of the output.
    pub stdout_bytes: i64,
    pub stderr_bytes: i64,
    pub started_at: Timestamp,
    pub duration_ms: i64,
}

/// A git operation that was run.
#[derive(Clone, Debug)]
pub struct GitRow {
    pub id: String,
    pub team: TeamId,
    pub sandbox: String,
    pub operation: &'static str,
    pub ok: bool,
    pub commit_sha: Option<String>,
    pub error: Option<String>,
    pub at: Timestamp,
}

/// Which commands to show, newest first.
#[derive(Clone, Debug, Default)]
pub struct CommandQuery {
    /// `None` for all teams.
    pub team: Option<TeamId>,
    pub sandbox: Option<String>,
    pub agent: Option<String>,
    pub task: Option<String>,
    /// Only commands before this sequence number.
    pub before: Option<i64>,
    pub limit: u32,
}

/// A stored command: with its sequence number, and with its output only if it was requested alone.
#[derive(Clone, Debug)]
pub struct StoredCommand {
    pub seq: i64,
    pub outcome: String,
    pub row: CommandRow,
}

pub(super) async fn insert(connection: &mut Transaction, row: &CommandRow) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO commands (id, team, sandbox, agent, task, actor, command, cwd, outcome, exit_code, error, \
         stdout, stderr, stdout_bytes, stderr_bytes, started_at, duration_ms) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&row.id)
    .bind(&row.team.0)
    .bind(&row.sandbox)
    .bind(&row.agent)
    .bind(&row.task)
    .bind(&row.actor)
    .bind(&row.command)
    .bind(&row.cwd)
    .bind(row.outcome)
    .bind(row.exit_code)
    .bind(&row.error)
    .bind(&row.stdout)
    .bind(&row.stderr)
    .bind(row.stdout_bytes)
    .bind(row.stderr_bytes)
    .bind(row.started_at.0)
    .bind(row.duration_ms)
    .execute(connection)
    .await
    .map(drop)
}

pub(super) async fn insert_git(connection: &mut Transaction, row: &GitRow) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO git_operations (id, team, sandbox, operation_type, status, commit_sha, error_message, \
         created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&row.id)
    .bind(&row.team.0)
    .bind(&row.sandbox)
    .bind(row.operation)
    .bind(if row.ok { "success" } else { "failed" })
    .bind(&row.commit_sha)
    .bind(&row.error)
    .bind(row.at.0)
    .execute(connection)
    .await
    .map(drop)
}

/// Lists do not contain the outputs, because a page of them could be megabytes.
const SHORT: &str = "seq, id, team, sandbox, agent, task, actor, command, cwd, outcome, exit_code, error, '', '', \
     stdout_bytes, stderr_bytes, started_at, duration_ms";
const FULL: &str = "seq, id, team, sandbox, agent, task, actor, command, cwd, outcome, exit_code, error, stdout, \
     stderr, stdout_bytes, stderr_bytes, started_at, duration_ms";

fn select(wanted: &CommandQuery) -> QueryBuilder<'static> {
    let mut query = QueryBuilder::new("SELECT ");
    query.push(SHORT).push(" FROM commands WHERE seq < ").push_bind(wanted.before.unwrap_or(i64::MAX));
    if let Some(team) = &wanted.team {
        query.push(" AND team = ").push_bind(team.0.clone());
    }
    for (column, value) in [("sandbox", &wanted.sandbox), ("agent", &wanted.agent), ("task", &wanted.task)] {
        if let Some(value) = value {
            query.push(" AND ").push(column).push(" = ").push_bind(value.clone());
        }
    }
    query.push(" ORDER BY seq DESC LIMIT ").push_bind(wanted.limit);
    query
}

impl Store {
    pub async fn list_commands(&self, wanted: &CommandQuery) -> Result<Vec<StoredCommand>, StoreError> {
        let rows = select(wanted).build().fetch_all(&self.read).await.map_err(StoreError::doing("read commands"))?;
        Ok(rows.iter().map(read).collect())
    }

    /// One command with its output.
    pub async fn find_command(&self, id: &str) -> Result<Option<StoredCommand>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(FULL).push(" FROM commands WHERE id = ").push_bind(id);
        let row = query.build().fetch_optional(&self.read).await.map_err(StoreError::doing("read a command"))?;
        Ok(row.as_ref().map(read))
    }

    /// Deletes older commands and git operations, a limited number at a time, so that other statements do not have to
    /// wait.
    pub async fn prune_service(&self, before: Timestamp) -> Result<(), StoreError> {
        let failed = StoreError::doing("delete old commands");
        let locked = self.write.skip_locked();
        for (table, time) in [("commands", "started_at"), ("git_operations", "created_at")] {
            let statement = format!(
                "DELETE FROM {table} WHERE seq IN (SELECT seq FROM {table} WHERE {time} < ? LIMIT 5000{locked})"
            );
            let remove = || query(AssertSqlSafe(statement.clone())).bind(before.0).execute(&self.write);
            while remove().await.map_err(&failed)?.rows_affected() > 0 {}
        }
        Ok(())
    }
}

fn read(row: &Row) -> StoredCommand {
    StoredCommand {
        seq: row.get(0),
        outcome: row.get(9),
        row: CommandRow {
            id: row.get(1),
            team: TeamId(row.get(2)),
            sandbox: row.get(3),
            agent: row.get(4),
            task: row.get(5),
            actor: row.get(6),
            command: row.get(7),
            cwd: row.get(8),
            outcome: "",
            exit_code: row.get(10),
            error: row.get(11),
            stdout: row.get(12),
            stderr: row.get(13),
            stdout_bytes: row.get(14),
            stderr_bytes: row.get(15),
            started_at: Timestamp(row.get(16)),
            duration_ms: row.get(17),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::Record;
    use super::*;

    fn row(number: usize) -> CommandRow {
        CommandRow {
            id: format!("c{number}"),
            team: TeamId(format!("t{}", number % 3)),
            sandbox: format!("s{}", number % 1000),
            agent: Some(format!("a{}", number % 50)),
            task: Some(format!("k{}", number % 500)),
            actor: "key:x".to_owned(),
            command: "echo hi".to_owned(),
            cwd: None,
            outcome: "exited",
            exit_code: Some(0),
            error: None,
            stdout: "hi\n".to_owned(),
            stderr: String::new(),
            stdout_bytes: 3,
            stderr_bytes: 0,
            started_at: Timestamp(1000 + i64::try_from(number).unwrap()),
            duration_ms: 1,
        }
    }

    async fn assert_uses_an_index(store: &Store, what: &str, question: &CommandQuery) {
        let is_postgres = crate::testing::postgres::is_wanted();
        let (word, column) = if is_postgres { ("EXPLAIN ", 0) } else { ("EXPLAIN QUERY PLAN ", 3) };
        let plan = select(question).explained(word).fetch_all(&store.read).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(column)).collect();
        let text = plan.join("; ");
        let (index, sort) = if is_postgres { ("Index", "Sort") } else { ("SEARCH commands USING", "TEMP B-TREE") };
        assert!(text.contains(index), "{what}: {text}");
        // With its statistics, PostgreSQL may rightly prefer to sort the few rows of one sandbox.
        assert!(is_postgres || !text.contains(sort), "{what} is sorted by hand: {text}");
    }

    /// With 100,000 stored commands, query times stay flat, because every query has an index.
    #[tokio::test]
    async fn a_hundred_thousand_commands_are_found_by_indexes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let server = store.server_identity().await.unwrap();
        let mut end = store.chain_end(&server).await.unwrap();
        for start in (0..100_000).step_by(10_000) {
            let records: Vec<_> =
                (start..start + 10_000).map(|number| Record::Command(Box::new(row(number)))).collect();
            store.write_records(&mut end, &records).await.unwrap();
        }
        let team = Some(TeamId("t1".to_owned()));
        let some = |text: &str| Some(text.to_owned());
        let all = CommandQuery { limit: 50, ..CommandQuery::default() };
        let questions = [
            ("all teams", all.clone()),
            ("a team", CommandQuery { team: team.clone(), ..all.clone() }),
            ("a sandbox", CommandQuery { team: team.clone(), sandbox: some("s7"), ..all.clone() }),
            ("an agent", CommandQuery { team: team.clone(), agent: some("a7"), ..all.clone() }),
            ("a task", CommandQuery { team: team.clone(), task: some("k7"), before: Some(90_000), ..all.clone() }),
        ];
        for (what, question) in questions {
            assert_uses_an_index(&store, what, &question).await;
            let started = Instant::now();
            let found = store.list_commands(&question).await.unwrap();
            assert!(!found.is_empty() && found.is_sorted_by(|left, right| left.seq > right.seq), "{what}");
            println!("{what}: {:?}", started.elapsed());
        }
        let one = store.find_command("c4711").await.unwrap().unwrap();
        assert_eq!((one.row.stdout.as_str(), one.outcome.as_str()), ("hi\n", "exited"));
    }
}
