//! Parses a JSON value into a type with fewer fields, and reports which fields it ignored.
//!
//! Clients may be newer than servers. A field that a new SDK sends must not break a request that worked before.
//! Therefore E2B's API ignores unknown fields, as E2B's own servers do, and logs their names. Where a field could be a
//! restriction, the type itself collects unknown fields and refuses them.

use std::cell::RefCell;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// The maximum number of names to report.
pub(crate) const MAX_NAMED: usize = 16;

/// Parses the value. Also returns the paths of the ignored fields, such as `steps.0.forceUpload`.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<(T, Vec<String>), Error> {
    let ignored = RefCell::new(Vec::new());
    let read = T::deserialize(Lenient { value, path: String::new(), ignored: &ignored })?;
    Ok((read, ignored.into_inner()))
}

/// A value with its path. Records the path if the value is ignored.
struct Lenient<'a> {
    value: Value,
    path: String,
    ignored: &'a RefCell<Vec<String>>,
}

impl<'a> Lenient<'a> {
    fn below(&self, value: Value, name: &dyn std::fmt::Display) -> Self {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Self { value, path, ignored: self.ignored }
    }
}

impl<'de> IntoDeserializer<'de, Error> for Lenient<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Lenient<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        match self.value.take() {
            Value::Object(fields) => {
                let below = fields.into_iter().map(|(name, value)| {
                    let value = self.below(value, &name);
                    (name, value)
                });
                MapDeserializer::new(below).deserialize_any(visitor)
            }
            Value::Array(values) => {
                let below = values.into_iter().enumerate().map(|(index, value)| self.below(value, &index));
                SeqDeserializer::new(below).deserialize_any(visitor)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut ignored = self.ignored.borrow_mut();
        if ignored.len() < MAX_NAMED {
            ignored.push(self.path);
        }
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Request {
        name: String,
        count: Option<u8>,
        steps: Vec<Step>,
        labels: BTreeMap<String, Value>,
        kind: Option<Kind>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Step {
        args: Vec<String>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(tag = "type", rename_all = "lowercase")]
    enum Kind {
        Plain { user: String },
    }

    #[test]
    fn what_is_known_is_read_and_the_rest_is_named() {
        let value = json!({
            "name": "web", "count": 3, "labels": { "a": { "b": 1 } }, "later": { "name": 1 },
            "steps": [{ "args": ["x"] }, { "args": [], "force": true, "deep": [{}] }],
            "kind": { "type": "plain", "user": "u", "more": 1 },
        });
        let (read, ignored) = from_value::<Request>(value).unwrap();
        assert_eq!((read.name.as_str(), read.count, read.steps.len()), ("web", Some(3), 2));
        assert_eq!(read.steps[0].args, ["x"]);
        assert_eq!(read.labels["a"], json!({ "b": 1 }));
        assert_eq!(read.kind, Some(Kind::Plain { user: "u".to_owned() }));
        assert_eq!(ignored, ["later", "steps.1.deep", "steps.1.force"]);
    }

    #[test]
    fn mistakes_in_what_is_known_stay_mistakes() {
        for bad in [
            json!({ "name": 1 }),
            json!({ "count": 300 }),
            json!({ "count": "3" }),
            json!({ "steps": {} }),
            json!({ "steps": [1] }),
            json!({ "kind": { "type": "other" } }),
            json!([1, 2, 3, 4, 5, 6]),
            json!("text"),
            json!(null),
        ] {
            let strict = serde_json::from_value::<Request>(bad.clone());
            let lenient = from_value::<Request>(bad.clone());
            assert_eq!(lenient.unwrap_err().to_string(), strict.unwrap_err().to_string(), "{bad}");
        }
    }

    #[test]
    fn the_names_of_a_hostile_body_do_not_fill_the_log() {
        let many: serde_json::Map<_, _> = (0..1000).map(|number| (format!("f{number}"), json!(1))).collect();
        assert_eq!(from_value::<Request>(Value::Object(many)).unwrap().1.len(), MAX_NAMED);
    }
}
