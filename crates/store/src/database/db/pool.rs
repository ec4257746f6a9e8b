//! Connections and transactions.

use futures::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres, Sqlite, SqliteConnection, SqlitePool};

/// Connections to the database. Clones share them.
#[derive(Clone, Debug)]
pub(crate) enum Pool {
    /// The pool, and the statement that starts a transaction.
    Sqlite(SqlitePool, &'static str),
    Postgres(PgPool),
}

/// Several statements that take effect together when they are committed, or not at all.
#[derive(Debug)]
pub(crate) enum Transaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

/// Where a statement runs: on any connection, or in a transaction.
#[derive(Debug)]
pub(crate) enum Target<'t> {
    Pool(&'t Pool),
    Transaction(&'t mut Transaction),
}

/// A connection on which to run one statement.
pub(super) enum Held<'t> {
    Sqlite(Borrowed<'t, Sqlite>),
    Postgres(Borrowed<'t, Postgres>),
}

/// A connection of its own, or that of a transaction.
pub(super) enum Borrowed<'t, D: sqlx::Database> {
    Own(PoolConnection<D>),
    Of(&'t mut D::Connection),
}

impl Pool {
    // Boxed, as in `query.rs`: so that it is compiled only here.
    pub(crate) fn begin(&self) -> BoxFuture<'_, Result<Transaction, sqlx::Error>> {
        Box::pin(async move {
            match self {
                Self::Sqlite(pool, words) => pool.begin_with(*words).await.map(Transaction::Sqlite),
                Self::Postgres(pool) => pool.begin().await.map(Transaction::Postgres),
            }
        })
    }

    /// The end of a subquery that selects rows to change. Rows that another server is changing are skipped.
    pub(crate) fn skip_locked(&self) -> &'static str {
        match self {
            Self::Sqlite(..) => "",
            Self::Postgres(_) => " FOR UPDATE SKIP LOCKED",
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(..) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    /// The number of open connections, and how many of them are idle.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let (open, idle) = match self {
            Self::Sqlite(pool, _) => (pool.size(), pool.num_idle()),
            Self::Postgres(pool) => (pool.size(), pool.num_idle()),
        };
        (usize::try_from(open).unwrap_or(usize::MAX), idle)
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(pool, _) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

impl Transaction {
    pub(crate) fn commit(self) -> BoxFuture<'static, Result<(), sqlx::Error>> {
        Box::pin(async move {
            match self {
                Self::Sqlite(transaction) => transaction.commit().await,
                Self::Postgres(transaction) => transaction.commit().await,
            }
        })
    }

    /// Takes a lock with this name until the end of the transaction. In SQLite this does nothing, because there is only
    /// one writer at a time.
    pub(crate) fn lock<'t>(&'t mut self, name: &'t str) -> BoxFuture<'t, Result<(), sqlx::Error>> {
        Box::pin(async move {
            if let Self::Postgres(transaction) = self {
                let lock = sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))").bind(name);
                lock.execute(&mut **transaction).await?;
            }
            Ok(())
        })
    }
}

impl<'t> From<&'t Pool> for Target<'t> {
    fn from(pool: &'t Pool) -> Self {
        Self::Pool(pool)
    }
}

impl<'t> From<&'t mut Transaction> for Target<'t> {
    fn from(transaction: &'t mut Transaction) -> Self {
        Self::Transaction(transaction)
    }
}

impl<'t> Target<'t> {
    pub(super) async fn hold(self) -> Result<Held<'t>, sqlx::Error> {
        Ok(match self {
            Self::Pool(Pool::Sqlite(pool, _)) => Held::Sqlite(Borrowed::Own(pool.acquire().await?)),
            Self::Pool(Pool::Postgres(pool)) => Held::Postgres(Borrowed::Own(pool.acquire().await?)),
            Self::Transaction(Transaction::Sqlite(transaction)) => Held::Sqlite(Borrowed::Of(&mut **transaction)),
            Self::Transaction(Transaction::Postgres(transaction)) => Held::Postgres(Borrowed::Of(&mut **transaction)),
        })
    }
}

impl Borrowed<'_, Sqlite> {
    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Of(connection) => connection,
        }
    }
}

impl Borrowed<'_, Postgres> {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Of(connection) => connection,
        }
    }
}
