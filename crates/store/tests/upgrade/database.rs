//! The database of one test, in a file or in PostgreSQL, and its content as text.

use std::collections::BTreeMap;

use isopod_store::testing::postgres;
use isopod_store::{Store, StoreError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, SqliteConnection};

use crate::values::SERVER;

/// Created for one test and removed after it.
pub(crate) struct Database {
    dir: tempfile::TempDir,
    /// The URL of the PostgreSQL database, if the test uses one.
    url: Option<String>,
}

impl Database {
    pub(crate) async fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("server-id"), SERVER).unwrap();
        let url = if postgres::is_wanted() { Some(postgres::database_for(dir.path()).await) } else { None };
        Self { dir, url }
    }

    /// A database as a server with that schema left it.
    pub(crate) async fn of_schema_11() -> Self {
        let database = Self::empty().await;
        if database.url.is_some() {
            database.run(include_str!("../fixtures/schema_11.postgres.sql")).await;
        } else {
            database.run(include_str!("../fixtures/schema_11.sqlite.sql")).await;
        }
        database
    }

    /// Opens the database with this version, as a server does.
    pub(crate) async fn open(&self) -> Result<Store, StoreError> {
        match &self.url {
            Some(url) => Store::connect(url, self.dir.path(), "alpha").await,
            None => Store::open(self.dir.path().join("isopod.db")).await,
        }
    }

    /// Pretends that another version has used the database.
    pub(crate) async fn set_version(&self, version: i64) {
        let statement = match &self.url {
            Some(_) => format!("UPDATE schema_version SET version = {version}"),
            None => format!("PRAGMA user_version = {version}"),
        };
        self.run(&statement).await;
    }

    async fn run(&self, statements: &str) {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        if let Some(url) = &self.url {
            let mut connection = PgConnection::connect(url).await.unwrap();
            statements.execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        } else {
            let mut connection = self.file().await;
            statements.execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        }
    }

    /// The first column of the result, which must be text.
    pub(crate) async fn rows(&self, statement: &str) -> Vec<String> {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        if let Some(url) = &self.url {
            let mut connection = PgConnection::connect(url).await.unwrap();
            let rows = statement.fetch_all(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        } else {
            let mut connection = self.file().await;
            let rows = statement.fetch_all(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }

    /// A dump has its rows in the order of the tables' names, so foreign keys are not checked while it is loaded.
    async fn file(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.dir.path().join("isopod.db")).create_if_missing(true);
        options.foreign_keys(false).connect().await.unwrap()
    }

    /// Every row of every table.
    pub(crate) async fn contents(&self) -> BTreeMap<String, Vec<String>> {
        let tables = match &self.url {
            Some(_) => "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'",
            None => "SELECT name FROM sqlite_master WHERE type = 'table'",
        };
        let mut contents = BTreeMap::new();
        for table in self.rows(tables).await {
            let rows = match &self.url {
                Some(_) => format!("SELECT t::text FROM {table} t ORDER BY 1"),
                None => format!("SELECT {} FROM {table} ORDER BY 1", self.all_columns(&table).await),
            };
            let rows = self.rows(&rows).await;
            contents.insert(table, rows);
        }
        contents
    }

    /// An SQL expression that converts a row of SQLite into one text.
    async fn all_columns(&self, table: &str) -> String {
        let columns = self.rows(&format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')")).await;
        columns.join(" || ',' || ")
    }

    /// Tables, indexes, constraints, triggers and the version.
    pub(crate) async fn schema(&self) -> Vec<String> {
        self.rows(if self.url.is_some() { POSTGRES_SCHEMA } else { SQLITE_SCHEMA }).await
    }
}

const SQLITE_SCHEMA: &str = "SELECT type || ' ' || name || ': ' || coalesce(sql, '') FROM sqlite_master \
     UNION ALL SELECT 'version ' || user_version FROM pragma_user_version ORDER BY 1";

const POSTGRES_SCHEMA: &str = "
SELECT concat_ws(' ', 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), l.collname, a.attnotnull,
    a.attidentity, pg_get_expr(d.adbin, d.adrelid)) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT concat('version ', version) FROM schema_version ORDER BY 1";
