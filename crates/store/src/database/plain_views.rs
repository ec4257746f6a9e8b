//! Views with plain names, for programs that query the database: `agents`, `tasks`, `sandboxes` and `git_operations` of the
//! sandbox service. In the schema of the server's tables these names belong to tables, so PostgreSQL has the views in a
//! schema of their own. SQLite has no schemas; there, only the views `v1_…` exist.
//!
//! They are created when a server starts, not by a migration, because a role that may create tables may not be allowed to
//! create schemas. A later start creates what is missing, also after a migration that dropped a `v1_…` view with `CASCADE`.

use crate::database::{Pool, QueryBuilder, Transaction, query};
use crate::{Store, StoreError};

/// What the views are named. Each shows the view with the prefix `v1_`.
const NAMES: [&str; 4] = ["agents", "tasks", "sandboxes", "git_operations"];

/// Why there are no views with plain names.
#[derive(Debug, thiserror::Error)]
pub enum PlainViewsError {
    /// The schema has something by that name which is not our view.
    #[error("the schema {schema} has {name:?} of another program")]
    Taken { schema: String, name: String },
    /// The database refused, for example because the role may not create schemas.
    #[error("could not create the schema {schema} with its views")]
    Refused { schema: String, source: sqlx::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A view in the schema.
struct Found {
    name: String,
    /// Whose view it is; see [`owner_note`].
    note: Option<String>,
}

impl Store {
    /// Creates the schema and its views, as far as they are missing. In SQLite this does nothing.
    pub async fn ensure_plain_views(&self) -> Result<(), PlainViewsError> {
        if !matches!(self.write, Pool::Postgres(_)) {
            return Ok(());
        }
        let failed = StoreError::doing("look for the views with plain names");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        // Servers that start at the same time must not create the same view.
        transaction.lock("views with plain names").await.map_err(&failed)?;
        let tables: String =
            query("SELECT current_schema()::text").fetch_one(&mut transaction).await.map_err(&failed)?.get(0);
        let schema = schema_of_views(&tables);
        let found = found_in(&mut transaction, &schema).await.map_err(&failed)?;
        if let Some(other) = found.iter().find(|view| view.note.as_deref() != Some(&owner_note(&tables, &view.name))) {
            return Err(PlainViewsError::Taken { schema, name: other.name.clone() });
        }
        let missing: Vec<&str> = NAMES.into_iter().filter(|name| found.iter().all(|view| view.name != *name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let created = match create(&mut transaction, &tables, &schema, &missing).await {
            Ok(()) => transaction.commit().await,
            Err(error) => Err(error),
        };
        created.map_err(|source| PlainViewsError::Refused { schema, source })
    }
}

/// The schema of the views of an installation whose tables are in the schema `tables`. Several installations may share a
/// database.
fn schema_of_views(tables: &str) -> String {
    if tables == "public" { "v1".to_owned() } else { format!("{tables}_v1") }
}

/// The comment of a view of ours, which names what it shows.
fn owner_note(tables: &str, name: &str) -> String {
    format!("Isopod: {tables}.v1_{name}")
}

async fn found_in(transaction: &mut Transaction, schema: &str) -> Result<Vec<Found>, sqlx::Error> {
    let mut select = QueryBuilder::new(
        "SELECT c.relname::text, obj_description(c.oid, 'pg_class') FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname::text = ",
    );
    select.push_bind(schema).push(" AND c.relname::text IN (");
    let mut names = select.separated(", ");
    for name in NAMES {
        names.push_bind(name);
    }
    select.push(")");
    let rows = select.build().fetch_all(transaction).await?;
    Ok(rows.iter().map(|row| Found { name: row.get(0), note: row.get(1) }).collect())
}

async fn create(
    transaction: &mut Transaction,
    tables: &str,
    schema: &str,
    missing: &[&str],
) -> Result<(), sqlx::Error> {
    let exists = query("SELECT 1::bigint FROM pg_namespace WHERE nspname::text = ?").bind(schema);
    if exists.fetch_optional(&mut *transaction).await?.is_none() {
        run(transaction, format!("CREATE SCHEMA {}", quoted(schema))).await?;
    }
    for name in missing {
        let (view, shown) = (format!("{}.{name}", quoted(schema)), format!("{}.v1_{name}", quoted(tables)));
        run(transaction, format!("CREATE VIEW {view} AS SELECT * FROM {shown}")).await?;
        let note = owner_note(tables, name).replace('\'', "''");
        run(transaction, format!("COMMENT ON VIEW {view} IS '{note}'")).await?;
    }
    Ok(())
}

async fn run(transaction: &mut Transaction, statement: String) -> Result<(), sqlx::Error> {
    QueryBuilder::new(statement).build().execute(transaction).await.map(drop)
}

/// The name as an identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

    use super::*;
    use crate::testing::postgres;

    async fn database() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let url = postgres::database_for(dir.path()).await;
        (dir, url)
    }

    async fn run_as_operator(url: &str, statements: &'static str) {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// What a program gets that knows no schema.
    async fn agents_in(url: &str, schema: &str) -> Result<Vec<String>, sqlx::Error> {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("SET search_path = {schema}"))).execute(&mut connection).await?;
        sqlx::query_scalar("SELECT name FROM agents ORDER BY name").fetch_all(&mut connection).await
    }

    const ADD_AGENT: &str = "INSERT INTO teams (id, name, created_at) VALUES ('t', 't', 1); \
         INSERT INTO agents (team, id, name, role, status, created_at, updated_at) \
         VALUES ('t', 'a', 'Ada', 'coder', 'idle', 1, 1)";

    #[tokio::test]
    async fn servers_that_start_together_or_again_create_the_views_once() {
        let (dir, url) = database().await;
        let store = Store::connect(&url, dir.path(), "alpha").await.unwrap();
        let (one, other) = tokio::join!(store.ensure_plain_views(), store.ensure_plain_views());
        one.and(other).unwrap();
        store.ensure_plain_views().await.unwrap();
        run_as_operator(&url, ADD_AGENT).await;
        assert_eq!(agents_in(&url, "v1").await.unwrap(), ["Ada"]);

        // A later migration may drop a view to change it.
        run_as_operator(
            &url,
            "DROP VIEW v1_agents CASCADE; CREATE VIEW v1_agents AS SELECT name || '!' AS name FROM agents",
        )
        .await;
        assert!(agents_in(&url, "v1").await.is_err());
        store.ensure_plain_views().await.unwrap();
        assert_eq!(agents_in(&url, "v1").await.unwrap(), ["Ada!"]);
    }

    #[tokio::test]
    async fn installations_in_one_database_have_views_of_their_own() {
        let (dir, url) = database().await;
        run_as_operator(&url, "CREATE SCHEMA second").await;
        let second = format!("{url}&options[search_path]=second");
        for (url, tables) in [(&url, "public"), (&second, "second")] {
            let store = Store::connect(url, dir.path(), "alpha").await.unwrap();
            store.ensure_plain_views().await.unwrap();
            assert_eq!(agents_in(url, &schema_of_views(tables)).await.unwrap(), Vec::<String>::new());
        }
        run_as_operator(&second, ADD_AGENT).await;
        assert_eq!(agents_in(&url, "second_v1").await.unwrap(), ["Ada"]);
        assert_eq!(agents_in(&url, "v1").await.unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_schema_of_another_program_is_left_alone() {
        let (dir, url) = database().await;
        let theirs = "CREATE SCHEMA v1; CREATE TABLE v1.agents (name TEXT); INSERT INTO v1.agents VALUES ('theirs')";
        run_as_operator(&url, theirs).await;
        let store = Store::connect(&url, dir.path(), "alpha").await.unwrap();
        let refused = store.ensure_plain_views().await.unwrap_err();
        assert_eq!(refused.to_string(), "the schema v1 has \"agents\" of another program");
        assert_eq!(agents_in(&url, "v1").await.unwrap(), ["theirs"]);
        let others = "SELECT 1::bigint FROM pg_views WHERE schemaname = 'v1'";
        assert!(query(others).fetch_optional(&store.read).await.unwrap().is_none());
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("My \"own\" schema"), r#""My ""own"" schema""#);
        assert_eq!((schema_of_views("public"), schema_of_views("isopod")), ("v1".to_owned(), "isopod_v1".to_owned()));
    }
}
