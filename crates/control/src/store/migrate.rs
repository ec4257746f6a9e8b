//! Brings the schema up to date. The number of a schema stands in `user_version`; each step is one transaction.

use sqlx::{Connection as _, Row as _, SqliteConnection, SqlitePool};

use super::StoreError;

/// In the order of their numbers.
const STEPS: &[(i64, &str)] = &[
    (1, include_str!("migrations/0001_first.sql")),
    (2, include_str!("migrations/0002_webhooks.sql")),
    (3, include_str!("migrations/0003_output.sql")),
    (4, include_str!("migrations/0004_spawns.sql")),
    (5, include_str!("migrations/0005_sessions.sql")),
    (6, include_str!("migrations/0006_runs.sql")),
    (7, include_str!("migrations/0007_templates.sql")),
    (8, include_str!("migrations/0008_workspace.sql")),
    (9, include_str!("migrations/0009_key_scopes.sql")),
    (10, include_str!("migrations/0010_service.sql")),
];

pub(super) async fn run(pool: &SqlitePool) -> Result<(), StoreError> {
    let failed = |to| move |source| StoreError::Migrate { to, source };
    let mut connection = pool.acquire().await.map_err(failed(0))?;
    let present = version(&mut connection).await.map_err(failed(0))?;
    let known = STEPS.last().map_or(0, |(number, _)| *number);
    if present > known {
        return Err(StoreError::Newer { found: present, known });
    }
    for (to, step) in STEPS.iter().filter(|(to, _)| *to > present) {
        apply(&mut connection, *to, step).await.map_err(failed(*to))?;
    }
    Ok(())
}

async fn version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query("PRAGMA user_version").fetch_one(connection).await?.try_get(0)
}

async fn apply(connection: &mut SqliteConnection, to: i64, step: &'static str) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    // Another process may have done this step while we waited for the lock.
    if version(&mut transaction).await? >= to {
        return Ok(());
    }
    sqlx::raw_sql(step).execute(&mut *transaction).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("PRAGMA user_version = {to}"))).execute(&mut *transaction).await?;
    transaction.commit().await
}
