//! Result rows. Columns are read by their position. A statement and its reader are next to each other in the code, so a
//! mismatch is a bug that panics in the first test.

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Column as _, Row as _, TypeInfo as _};

#[derive(Debug)]
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A type that can be read from a column.
pub(crate) trait Read<'r>: Sized {
    fn read(row: &'r Row, index: usize) -> Result<Self, sqlx::Error>;
}

impl Row {
    pub(crate) fn get<'r, T: Read<'r>>(&'r self, index: usize) -> T {
        match T::read(self, index) {
            Ok(value) => value,
            Err(error) => panic!("column {index} does not have the type that its reader expects: {error}"),
        }
    }
}

/// Types that both drivers read in the same way.
macro_rules! read_alike {
    ($($kind:ty),*) => {
        $(impl<'r> Read<'r> for $kind {
            fn read(row: &'r Row, index: usize) -> Result<Self, sqlx::Error> {
                match row {
                    Row::Sqlite(row) => row.try_get(index),
                    Row::Postgres(row) => row.try_get(index),
                }
            }
        })*
    };
}

read_alike!(String, &'r str, &'r [u8], Vec<u8>, f64);
read_alike!(Option<String>, Option<&'r str>, Option<&'r [u8]>, Option<Vec<u8>>);

impl<'r> Read<'r> for Option<i64> {
    fn read(row: &'r Row, index: usize) -> Result<Self, sqlx::Error> {
        match row {
            Row::Sqlite(row) => row.try_get(index),
            Row::Postgres(row) => integer(row, index),
        }
    }
}

/// Columns have 64 bits, but a computed value may be a 32-bit integer or a boolean.
fn integer(row: &PgRow, index: usize) -> Result<Option<i64>, sqlx::Error> {
    match row.columns().get(index).map(|column| column.type_info().name()) {
        Some("INT4") => Ok(row.try_get::<Option<i32>, _>(index)?.map(i64::from)),
        Some("BOOL") => Ok(row.try_get::<Option<bool>, _>(index)?.map(i64::from)),
        _ => row.try_get(index),
    }
}

/// Types that are integers in the database.
macro_rules! read_integer {
    ($($kind:ty => |$value:ident| $made:expr;)*) => {
        $(impl<'r> Read<'r> for Option<$kind> {
            fn read(row: &'r Row, index: usize) -> Result<Self, sqlx::Error> {
                let Some($value) = Option::<i64>::read(row, index)? else { return Ok(None) };
                Ok(Some($made))
            }
        }
        impl<'r> Read<'r> for $kind {
            fn read(row: &'r Row, index: usize) -> Result<Self, sqlx::Error> {
                Option::<$kind>::read(row, index)?.ok_or_else(missing)
            }
        })*
    };
}

read_integer! {
    i32 => |value| i32::try_from(value).map_err(decode)?;
    u32 => |value| u32::try_from(value).map_err(decode)?;
    bool => |value| value != 0;
}

impl<'r> Read<'r> for i64 {
    fn read(row: &'r Row, index: usize) -> Result<Self, sqlx::Error> {
        Option::<i64>::read(row, index)?.ok_or_else(missing)
    }
}

fn missing() -> sqlx::Error {
    sqlx::Error::Decode("a value is missing".into())
}

fn decode(error: std::num::TryFromIntError) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}
