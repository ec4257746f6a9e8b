//! Parameters of a query string, a path or a header. One declaration both validates requests and documents the
//! parameter.

use serde_json::json;
use utoipa::PartialSchema;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Required};

#[derive(Clone, Copy, Debug)]
pub struct Param {
    name: &'static str,
    kind: Kind,
    is_required: bool,
    about: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Text {
        pattern: Option<&'static str>,
        least: usize,
        most: Option<usize>,
    },
    Time,
    Flag,
    Number {
        least: i64,
        most: i64,
    },
    OneOf(&'static [&'static str]),
    /// May be repeated.
    Several,
    /// The schema of a type.
    Typed(fn() -> RefOr<Schema>),
}

/// The query parameters of a route. The type has no values: it is only used in the handler's signature, as in
/// `Query<ListTasks>`.
pub trait QueryParams {
    const PARAMS: &'static [Param];
    /// E2B's API ignores unknown parameters, because its clients may be newer than this server. Our own APIs refuse
    /// them, because an ignored filter would return wrong results.
    const IGNORES_UNKNOWN: bool = false;
}

/// A route without query parameters.
#[derive(Clone, Copy, Debug)]
pub enum NoParams {}

impl QueryParams for NoParams {
    const PARAMS: &'static [Param] = &[];
}

impl Param {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, is_required: false, about: None }
    }

    pub const fn text(name: &'static str) -> Self {
        Self::new(name, Kind::Text { pattern: None, least: 0, most: None })
    }

    /// A text that matches a regular expression.
    pub const fn pattern(name: &'static str, pattern: &'static str) -> Self {
        Self::new(name, Kind::Text { pattern: Some(pattern), least: 0, most: None })
    }

    /// A text with a limited number of characters.
    pub const fn text_of(name: &'static str, least: usize, most: usize) -> Self {
        Self::new(name, Kind::Text { pattern: None, least, most: Some(most) })
    }

    /// A text that is not empty.
    pub const fn some_text(name: &'static str) -> Self {
        Self::new(name, Kind::Text { pattern: None, least: 1, most: None })
    }

    /// A time in RFC 3339 format.
    pub const fn time(name: &'static str) -> Self {
        Self::new(name, Kind::Time)
    }

    pub const fn flag(name: &'static str) -> Self {
        Self::new(name, Kind::Flag)
    }

    pub const fn number(name: &'static str, least: i64, most: i64) -> Self {
        Self::new(name, Kind::Number { least, most })
    }

    pub const fn one_of(name: &'static str, known: &'static [&'static str]) -> Self {
        Self::new(name, Kind::OneOf(known))
    }

    /// A text that may be repeated.
    pub const fn several(name: &'static str) -> Self {
        Self::new(name, Kind::Several)
    }

    /// A parameter that is parsed into this type.
    pub const fn typed<T: PartialSchema>(name: &'static str) -> Self {
        Self::new(name, Kind::Typed(T::schema))
    }

    #[must_use]
    pub const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    #[must_use]
    pub const fn about(self, about: &'static str) -> Self {
        Self { about: Some(about), ..self }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The bounds of a number.
    pub(crate) fn range(&self) -> Option<(i64, i64)> {
        match self.kind {
            Kind::Number { least, most } => Some((least, most)),
            _ => None,
        }
    }

    pub(crate) fn described(&self, place: ParameterIn) -> Parameter {
        let is_required = self.is_required || matches!(place, ParameterIn::Path);
        ParameterBuilder::new()
            .name(self.name)
            .parameter_in(place)
            .required(if is_required { Required::True } else { Required::False })
            .description(self.about)
            .schema(Some(self.kind.schema()))
            .build()
    }
}

impl Kind {
    fn schema(self) -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        match self {
            Self::Text { pattern, least, most } => {
                let least = Some(least).filter(|least| *least > 0);
                text().pattern(pattern).min_length(least).max_length(most).into()
            }
            Self::Time => text().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))).into(),
            Self::Flag => ObjectBuilder::new().schema_type(Type::Boolean).into(),
            Self::Number { least, most } => {
                let number = ObjectBuilder::new().schema_type(Type::Integer);
                // A bound of the integer type itself is of no use to readers.
                let most = Some(most).filter(|most| *most < i64::from(u32::MAX) - 1);
                number.minimum(Some(least)).maximum(most).into()
            }
            Self::OneOf(known) => text().enum_values(Some(known.iter().map(|known| json!(known)))).into(),
            Self::Typed(schema) => schema(),
            Self::Several => ArrayBuilder::new().items(text()).into(),
        }
    }
}
