//! Brings the schema up to date. The number of a schema stands in `user_version` of a file, and in the table
//! `schema_version` of a PostgreSQL database; each step is one transaction.
//!
//! Steps are written for SQLite. `dialect` says the same in PostgreSQL's words; what it cannot say, triggers, is written
//! down for PostgreSQL beside the step.

use sqlx::{Connection as _, PgConnection, PgPool, Row as _, SqliteConnection, SqlitePool};

use super::{StoreError, dialect};

/// One step: its number, and its words for both.
struct Step {
    to: i64,
    sqlite: &'static str,
    /// What comes after the translated step.
    postgres: &'static str,
}

const fn step(to: i64, sqlite: &'static str) -> Step {
    Step { to, sqlite, postgres: "" }
}

/// In the order of their numbers.
const STEPS: &[Step] = &[
    step(1, include_str!("migrations/0001_first.sql")),
    step(2, include_str!("migrations/0002_webhooks.sql")),
    step(3, include_str!("migrations/0003_output.sql")),
    Step {
        to: 4,
        sqlite: include_str!("migrations/0004_spawns.sql"),
        postgres: include_str!("migrations/0004_spawns_postgres.sql"),
    },
    step(5, include_str!("migrations/0005_sessions.sql")),
    step(6, include_str!("migrations/0006_runs.sql")),
    step(7, include_str!("migrations/0007_templates.sql")),
    step(8, include_str!("migrations/0008_workspace.sql")),
    step(9, include_str!("migrations/0009_key_scopes.sql")),
    Step {
        to: 10,
        sqlite: include_str!("migrations/0010_service.sql"),
        postgres: include_str!("migrations/0010_service_postgres.sql"),
    },
    step(11, include_str!("migrations/0011_servers.sql")),
];

fn failed(to: i64) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Migrate { to, source }
}

/// The steps that are to be done, unless a newer version was here.
fn missing(present: i64) -> Result<impl Iterator<Item = &'static Step>, StoreError> {
    let known = STEPS.last().map_or(0, |step| step.to);
    if present > known {
        return Err(StoreError::Newer { found: present, known });
    }
    Ok(STEPS.iter().filter(move |step| step.to > present))
}

pub(super) async fn sqlite(pool: &SqlitePool) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await.map_err(failed(0))?;
    let present = sqlite_version(&mut connection).await.map_err(failed(0))?;
    for step in missing(present)? {
        apply_sqlite(&mut connection, step).await.map_err(failed(step.to))?;
    }
    Ok(())
}

async fn sqlite_version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query("PRAGMA user_version").fetch_one(connection).await?.try_get(0)
}

async fn apply_sqlite(connection: &mut SqliteConnection, step: &Step) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    // Another process may have done this step while we waited for the lock.
    if sqlite_version(&mut transaction).await? >= step.to {
        return Ok(());
    }
    sqlx::raw_sql(step.sqlite).execute(&mut *transaction).await?;
    let number = format!("PRAGMA user_version = {}", step.to);
    sqlx::raw_sql(sqlx::AssertSqlSafe(number)).execute(&mut *transaction).await?;
    transaction.commit().await
}

/// Held by the server that changes the schema; the others wait. Any number that nobody else has.
const LOCK: i64 = 0x6973_6f70_6f64;

/// All steps are one transaction here: PostgreSQL gives back what it began, and whoever waited finds all of it done.
pub(super) async fn postgres(pool: &PgPool) -> Result<(), StoreError> {
    let mut transaction = pool.begin().await.map_err(failed(0))?;
    let present = postgres_version(&mut transaction).await.map_err(failed(0))?;
    for step in missing(present)? {
        apply_postgres(&mut transaction, step).await.map_err(failed(step.to))?;
    }
    transaction.commit().await.map_err(failed(0))
}

async fn postgres_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // However long another server takes for its steps.
    sqlx::raw_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0").execute(&mut *connection).await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    let table = "CREATE TABLE IF NOT EXISTS schema_version (only_one BIGINT PRIMARY KEY CHECK (only_one = 1), \
                 version BIGINT NOT NULL)";
    sqlx::raw_sql(table).execute(&mut *connection).await?;
    let row = sqlx::query("SELECT version FROM schema_version").fetch_optional(connection).await?;
    row.map_or(Ok(0), |row| row.try_get(0))
}

async fn apply_postgres(connection: &mut PgConnection, step: &Step) -> Result<(), sqlx::Error> {
    let words = sqlx::AssertSqlSafe(dialect::postgres(step.sqlite));
    sqlx::raw_sql(words).execute(&mut *connection).await?;
    sqlx::raw_sql(step.postgres).execute(&mut *connection).await?;
    sqlx::query(
        "INSERT INTO schema_version (only_one, version) VALUES (1, $1) \
         ON CONFLICT (only_one) DO UPDATE SET version = excluded.version",
    )
    .bind(step.to)
    .execute(connection)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trigger_is_there_for_both() {
        for step in STEPS {
            let count = |text: &str| text.matches("CREATE TRIGGER").count();
            assert_eq!(count(step.sqlite), count(step.postgres), "step {}", step.to);
        }
    }

    #[test]
    fn steps_are_in_their_order() {
        assert!(STEPS.is_sorted_by(|left, right| left.to < right.to));
    }
}
