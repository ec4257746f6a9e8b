//! Updates the schema. The version of the schema is in `user_version` of a file, and in the table `schema_version` of a
//! PostgreSQL database. In SQLite, each migration is one transaction.

use sqlx::{Connection as _, PgConnection, PgPool, Row as _, SqliteConnection, SqlitePool};

use super::StoreError;
use super::migrations::{MIGRATIONS, Migration};

fn failed(to: i64) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Migrate { to, source }
}

/// The migrations that are still to be applied. Fails if the database has a newer version.
fn missing(present: i64) -> Result<impl Iterator<Item = &'static Migration>, StoreError> {
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    if present > known {
        return Err(StoreError::Newer { found: present, known });
    }
    Ok(MIGRATIONS.iter().filter(move |migration| migration.version > present))
}

pub(super) async fn sqlite(pool: &SqlitePool) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await.map_err(failed(0))?;
    let present = sqlite_version(&mut connection).await.map_err(failed(0))?;
    for migration in missing(present)? {
        apply_sqlite(&mut connection, migration).await.map_err(failed(migration.version))?;
    }
    Ok(())
}

async fn sqlite_version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query("PRAGMA user_version").fetch_one(connection).await?.try_get(0)
}

async fn apply_sqlite(connection: &mut SqliteConnection, migration: &Migration) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    // Another process may have applied this migration while we waited for the lock.
    if sqlite_version(&mut transaction).await? >= migration.version {
        return Ok(());
    }
    sqlx::raw_sql(migration.sqlite).execute(&mut *transaction).await?;
    let number = format!("PRAGMA user_version = {}", migration.version);
    sqlx::raw_sql(sqlx::AssertSqlSafe(number)).execute(&mut *transaction).await?;
    transaction.commit().await
}

/// Held by the server that changes the schema, while the others wait. An arbitrary number that no other program uses.
const LOCK: i64 = 0x6973_6f70_6f64;

/// All migrations are one transaction here, because PostgreSQL can roll back schema changes. Servers that wait find all
/// of them applied.
pub(super) async fn postgres(pool: &PgPool) -> Result<(), StoreError> {
    let mut transaction = pool.begin().await.map_err(failed(0))?;
    let present = postgres_version(&mut transaction).await.map_err(failed(0))?;
    for migration in missing(present)? {
        apply_postgres(&mut transaction, migration).await.map_err(failed(migration.version))?;
    }
    transaction.commit().await.map_err(failed(0))
}

async fn postgres_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // Wait as long as another server needs for its migrations.
    sqlx::raw_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0").execute(&mut *connection).await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    let table = "CREATE TABLE IF NOT EXISTS schema_version (only_one BIGINT PRIMARY KEY CHECK (only_one = 1), \
                 version BIGINT NOT NULL)";
    sqlx::raw_sql(table).execute(&mut *connection).await?;
    let row = sqlx::query("SELECT version FROM schema_version").fetch_optional(connection).await?;
    row.map_or(Ok(0), |row| row.try_get(0))
}

async fn apply_postgres(connection: &mut PgConnection, migration: &Migration) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(migration.postgres).execute(&mut *connection).await?;
    sqlx::query(
        "INSERT INTO schema_version (only_one, version) VALUES (1, $1) \
         ON CONFLICT (only_one) DO UPDATE SET version = excluded.version",
    )
    .bind(migration.version)
    .execute(connection)
    .await
    .map(drop)
}
