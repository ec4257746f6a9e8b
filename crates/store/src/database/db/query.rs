//! Statements with their values, and a builder for them.

use std::fmt::Display;

use futures::TryStreamExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Error, Postgres, SqlSafeStr, SqlStr, Sqlite};

use super::pool::{Held, Target};
use super::row::Row;
use super::value::Value;

/// A statement with a `?` for each of its values.
#[derive(Debug)]
pub(crate) struct Query<'q> {
    text: SqlStr,
    values: Vec<Value<'q>>,
}

/// The result of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done(u64);

/// A statement that is being built.
#[derive(Debug)]
pub(crate) struct QueryBuilder<'q> {
    text: String,
    values: Vec<Value<'q>>,
}

/// A list that is being built.
#[derive(Debug)]
pub(crate) struct Separated<'b, 'q> {
    builder: &'b mut QueryBuilder<'q>,
    separator: &'static str,
    is_first: bool,
}

/// A statement with a fixed text.
pub(crate) fn query<'q>(text: impl SqlSafeStr) -> Query<'q> {
    Query { text: text.into_sql_str(), values: Vec::new() }
}

impl Done {
    pub(crate) fn rows_affected(self) -> u64 {
        self.0
    }
}

impl<'q> Query<'q> {
    pub(crate) fn bind(mut self, value: impl Into<Value<'q>>) -> Self {
        self.values.push(value.into());
        self
    }

    pub(crate) fn execute<'t>(self, on: impl Into<Target<'t>>) -> BoxFuture<'t, Result<Done, Error>>
    where
        'q: 't,
    {
        self.execute_on(on.into())
    }

    pub(crate) fn fetch_optional<'t>(self, on: impl Into<Target<'t>>) -> BoxFuture<'t, Result<Option<Row>, Error>>
    where
        'q: 't,
    {
        self.fetch_optional_on(on.into())
    }

    pub(crate) async fn fetch_one<'t>(self, on: impl Into<Target<'t>>) -> Result<Row, Error>
    where
        'q: 't,
    {
        self.fetch_optional(on).await?.ok_or(Error::RowNotFound)
    }

    pub(crate) fn fetch_all<'t>(self, on: impl Into<Target<'t>>) -> BoxFuture<'t, Result<Vec<Row>, Error>>
    where
        'q: 't,
    {
        self.fetch_all_on(on.into())
    }

    /// Reads row by row as long as `goes_on` returns true.
    pub(crate) async fn fetch_while<'t>(
        self,
        on: impl Into<Target<'t>>,
        mut goes_on: impl FnMut(&Row) -> bool + Send,
    ) -> Result<(), Error>
    where
        'q: 't,
    {
        self.fetch_while_on(on.into(), &mut goes_on).await
    }

    // The futures of the methods below are boxed so that they are compiled here. The body of an `async fn` is compiled in
    // every crate that polls it, and with these came most of sqlx.

    fn execute_on<'t>(self, on: Target<'t>) -> BoxFuture<'t, Result<Done, Error>>
    where
        'q: 't,
    {
        Box::pin(async move {
            match on.hold().await? {
                Held::Sqlite(mut held) => {
                    let done = self.into_sqlite()?.execute(held.connection()).await?;
                    Ok(Done(done.rows_affected()))
                }
                Held::Postgres(mut held) => {
                    let done = self.into_postgres()?.execute(held.connection()).await?;
                    Ok(Done(done.rows_affected()))
                }
            }
        })
    }

    fn fetch_optional_on<'t>(self, on: Target<'t>) -> BoxFuture<'t, Result<Option<Row>, Error>>
    where
        'q: 't,
    {
        Box::pin(async move {
            match on.hold().await? {
                Held::Sqlite(mut held) => {
                    let row = self.into_sqlite()?.fetch_optional(held.connection()).await?;
                    Ok(row.map(Row::Sqlite))
                }
                Held::Postgres(mut held) => {
                    let row = self.into_postgres()?.fetch_optional(held.connection()).await?;
                    Ok(row.map(Row::Postgres))
                }
            }
        })
    }

    fn fetch_all_on<'t>(self, on: Target<'t>) -> BoxFuture<'t, Result<Vec<Row>, Error>>
    where
        'q: 't,
    {
        Box::pin(async move {
            match on.hold().await? {
                Held::Sqlite(mut held) => {
                    let rows = self.into_sqlite()?.fetch_all(held.connection()).await?;
                    Ok(rows.into_iter().map(Row::Sqlite).collect())
                }
                Held::Postgres(mut held) => {
                    let rows = self.into_postgres()?.fetch_all(held.connection()).await?;
                    Ok(rows.into_iter().map(Row::Postgres).collect())
                }
            }
        })
    }

    fn fetch_while_on<'t>(
        self,
        on: Target<'t>,
        goes_on: &'t mut (dyn FnMut(&Row) -> bool + Send),
    ) -> BoxFuture<'t, Result<(), Error>>
    where
        'q: 't,
    {
        Box::pin(async move {
            match on.hold().await? {
                Held::Sqlite(mut held) => {
                    let mut rows = self.into_sqlite()?.fetch(held.connection()).map_ok(Row::Sqlite);
                    while rows.try_next().await?.is_some_and(|row| goes_on(&row)) {}
                }
                Held::Postgres(mut held) => {
                    let mut rows = self.into_postgres()?.fetch(held.connection()).map_ok(Row::Postgres);
                    while rows.try_next().await?.is_some_and(|row| goes_on(&row)) {}
                }
            }
            Ok(())
        })
    }

    fn into_sqlite(self) -> Result<sqlx::query::Query<'static, Sqlite, SqliteArguments>, Error> {
        let mut arguments = SqliteArguments::default();
        for value in self.values {
            value.add_to_sqlite(&mut arguments)?;
        }
        Ok(sqlx::query_with(self.text, arguments))
    }

    fn into_postgres(self) -> Result<sqlx::query::Query<'static, Postgres, PgArguments>, Error> {
        let mut arguments = PgArguments::default();
        for value in self.values {
            value.add_to_postgres(&mut arguments)?;
        }
        Ok(sqlx::query_with(AssertSqlSafe(numbered(self.text.as_str())), arguments))
    }
}

/// The same statement with `$1`, `$2` and so on. A question mark inside quotes stays.
fn numbered(text: &str) -> String {
    let mut made = String::with_capacity(text.len() + 32);
    let (mut count, mut is_quoted) = (0_u32, false);
    for letter in text.chars() {
        is_quoted ^= letter == '\'';
        if letter == '?' && !is_quoted {
            count += 1;
            made.push('$');
            made.push_str(&count.to_string());
        } else {
            made.push(letter);
        }
    }
    made
}

impl<'q> QueryBuilder<'q> {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: Vec::new() }
    }

    /// Adds text from the program, never from outside.
    pub(crate) fn push(&mut self, words: impl Display) -> &mut Self {
        use std::fmt::Write as _;
        write!(self.text, "{words}").expect("writing to a string cannot fail");
        self
    }

    pub(crate) fn push_bind(&mut self, value: impl Into<Value<'q>>) -> &mut Self {
        self.text.push('?');
        self.values.push(value.into());
        self
    }

    pub(crate) fn separated<'b>(&'b mut self, separator: &'static str) -> Separated<'b, 'q> {
        Separated { builder: self, separator, is_first: true }
    }

    /// Adds `VALUES (…), (…)`, with one pair of parentheses for each item.
    pub(crate) fn push_values<I: IntoIterator>(
        &mut self,
        items: I,
        mut push_row: impl FnMut(Separated<'_, 'q>, I::Item),
    ) -> &mut Self {
        self.text.push_str("VALUES ");
        for (number, item) in items.into_iter().enumerate() {
            self.text.push_str(if number == 0 { "(" } else { ", (" });
            push_row(self.separated(", "), item);
            self.text.push(')');
        }
        self
    }

    /// A statement that explains how this statement would be executed.
    #[cfg(test)]
    pub(crate) fn explained(mut self, word: &str) -> Query<'q> {
        self.text.insert_str(0, word);
        self.build()
    }

    pub(crate) fn build(self) -> Query<'q> {
        Query { text: AssertSqlSafe(self.text).into_sql_str(), values: self.values }
    }
}

impl<'q> Separated<'_, 'q> {
    pub(crate) fn push(&mut self, words: impl Display) -> &mut Self {
        self.separate();
        self.builder.push(words);
        self
    }

    pub(crate) fn push_bind(&mut self, value: impl Into<Value<'q>>) -> &mut Self {
        self.separate();
        self.builder.push_bind(value);
        self
    }

    fn separate(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            self.builder.text.push_str(self.separator);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered_and_question_marks_in_texts_stay() {
        assert_eq!(numbered("a = ? AND b = 'it''s ?' AND c = ?"), "a = $1 AND b = 'it''s ?' AND c = $2");
    }

    #[test]
    fn rows_and_lists_are_put_together() {
        let mut query = QueryBuilder::new("INSERT INTO t (a, b) ");
        query.push_values([1_i64, 2], |mut row, number| {
            row.push_bind(number).push("0");
        });
        assert_eq!(query.text, "INSERT INTO t (a, b) VALUES (?, 0), (?, 0)");
        assert_eq!(query.values.len(), 2);
    }
}
