//! Values for statements. A missing value keeps its type, because PostgreSQL needs it.

use std::borrow::Cow;

use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, Error};

/// A value. A borrowed one is copied once, when the driver takes it.
#[derive(Clone, Debug)]
pub(crate) enum Value<'q> {
    Integer(Option<i64>),
    Real(Option<f64>),
    Text(Option<Cow<'q, str>>),
    Bytes(Option<Cow<'q, [u8]>>),
}

impl Value<'_> {
    pub(super) fn add_to_sqlite(self, arguments: &mut SqliteArguments) -> Result<(), Error> {
        match self {
            Self::Integer(value) => arguments.add(value),
            Self::Real(value) => arguments.add(value),
            Self::Text(value) => arguments.add(value),
            Self::Bytes(value) => arguments.add(value.as_deref()),
        }
        .map_err(Error::Encode)
    }

    pub(super) fn add_to_postgres(self, arguments: &mut PgArguments) -> Result<(), Error> {
        match self {
            Self::Integer(value) => arguments.add(value),
            Self::Real(value) => arguments.add(value),
            Self::Text(value) => arguments.add(value.map(without_nul)),
            Self::Bytes(value) => arguments.add(value.as_deref()),
        }
        .map_err(Error::Encode)
    }
}

/// Replaces NUL characters, which the output of programs may contain but PostgreSQL's text may not, with U+FFFD.
pub(crate) fn without_nul(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { text }
}

macro_rules! values {
    ($($from:ty => |$value:ident| $variant:ident($made:expr);)*) => {
        $(impl<'q> From<$from> for Value<'q> {
            fn from($value: $from) -> Self {
                Self::$variant($made)
            }
        })*
    };
}

values! {
    i64 => |value| Integer(Some(value));
    i32 => |value| Integer(Some(value.into()));
    u32 => |value| Integer(Some(value.into()));
    bool => |value| Integer(Some(value.into()));
    Option<i64> => |value| Integer(value);
    Option<i32> => |value| Integer(value.map(i64::from));
    Option<bool> => |value| Integer(value.map(i64::from));
    f64 => |value| Real(Some(value));
    String => |value| Text(Some(Cow::Owned(value)));
    Option<String> => |value| Text(value.map(Cow::Owned));
    &'q str => |value| Text(Some(Cow::Borrowed(value)));
    &'q String => |value| Text(Some(Cow::Borrowed(value)));
    Option<&'q str> => |value| Text(value.map(Cow::Borrowed));
    Option<&'q String> => |value| Text(value.map(|text| Cow::Borrowed(text.as_str())));
    &'q Option<String> => |value| Text(value.as_deref().map(Cow::Borrowed));
    &'q [u8] => |value| Bytes(Some(Cow::Borrowed(value)));
    Option<&'q [u8]> => |value| Bytes(value.map(Cow::Borrowed));
    Option<Vec<u8>> => |value| Bytes(value.map(Cow::Owned));
}
