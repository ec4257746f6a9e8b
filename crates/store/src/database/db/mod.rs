//! The database below the store: SQLite in a file, or a PostgreSQL server. Statements are written once, with `?` for
//! their values, in the SQL that both understand; this module carries them to whichever is there.
//!
//! What differs is kept here: placeholders, how a transaction begins, how values are typed. Truth values are integers, 0
//! and 1, in both. A lock that SQLite's one writer gives by itself is asked for by name (`Transaction::lock`).

mod pool;
mod query;
mod row;
mod value;

pub(crate) use pool::{Pool, Transaction};
pub(crate) use query::{QueryBuilder, query};
pub(crate) use row::Row;
