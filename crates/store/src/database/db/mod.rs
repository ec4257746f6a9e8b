//! The database below the store: SQLite in a file, or a PostgreSQL server. Statements are written once, with `?` for
//! their values, in the SQL that both understand. This module sends them to the database in use.
//!
//! It hides the differences: placeholders, the start of a transaction, and the types of values. Booleans are the
//! integers 0 and 1 in both. SQLite has only one writer; in PostgreSQL, a transaction takes a lock by its name instead
//! (`Transaction::lock`).

mod pool;
mod query;
mod row;
mod value;

pub(crate) use pool::{Pool, Transaction};
pub(crate) use query::{Query, QueryBuilder, query};
pub(crate) use row::Row;
