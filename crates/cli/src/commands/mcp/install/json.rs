//! A member in a JSON file of somebody else's: the others keep their order and their form.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::NAME;
use crate::failure::Hint;

/// The file with `entry` as the member `isopod` of its member `section`, and perhaps an input that the entry needs.
pub(super) fn merge(
    before: Option<&str>,
    section: &str,
    entry: &Value,
    input: Option<&Value>,
) -> anyhow::Result<String> {
    let text = before.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
    let mut file = parse(text)?;
    let mut servers = file.get(section).map_or_else(|| Ok(Members::default()), parse)?;
    servers.set(NAME, indented(entry, 4));
    file.set(section, servers.write(2));
    if let Some(input) = input {
        let mut inputs: Vec<Value> = match file.get("inputs") {
            Some(text) => serde_json::from_str(text).map_err(unreadable)?,
            None => Vec::new(),
        };
        if !inputs.iter().any(|other| other["id"] == input["id"]) {
            inputs.push(input.clone());
            file.set("inputs", indented(&Value::Array(inputs), 2));
        }
    }
    Ok(file.write(0) + "\n")
}

fn parse(text: &str) -> anyhow::Result<Members> {
    serde_json::from_str(text).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> anyhow::Error {
    Hint::because(
        "the configuration is not plain JSON, so nothing was changed",
        error,
        "it may have comments; --print shows the entry, to be added by hand",
    )
}

/// An object whose members are text.
#[derive(Default)]
struct Members(Vec<(String, String)>);

impl Members {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    fn write(&self, indent: usize) -> String {
        let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
        let member = |(name, value): &(String, String)| format!("{inner}{}: {value}", Value::from(name.as_str()));
        match self.0.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{\n{}\n{outer}}}", self.0.iter().map(member).collect::<Vec<_>>().join(",\n")),
        }
    }
}

fn indented(value: &Value, indent: usize) -> String {
    format!("{value:#}").replace('\n', &format!("\n{}", " ".repeat(indent)))
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    members.push((name, value.get().to_owned()));
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_entries_keep_their_order_and_form() {
        let before = "{\n  \"z\": {\"b\":1,   \"a\":2},\n  \"mcpServers\": {\n    \"other\": {\"command\": \"x\"}\n  },\n  \"a\": 1.0\n}\n";
        let after = merge(Some(before), "mcpServers", &json!({"command": "isopod"}), None).unwrap();
        let expected = "{\n  \"z\": {\"b\":1,   \"a\":2},\n  \"mcpServers\": {\n    \"other\": {\"command\": \"x\"},\n    \
            \"isopod\": {\n      \"command\": \"isopod\"\n    }\n  },\n  \"a\": 1.0\n}\n";
        assert_eq!(after, expected);
        assert_eq!(
            merge(Some(&after), "mcpServers", &json!({"command": "isopod"}), None).unwrap(),
            after,
            "once is enough"
        );
        let changed = merge(Some(&after), "mcpServers", &json!({"command": "new"}), None).unwrap();
        assert_eq!(changed, after.replace("\"command\": \"isopod\"", "\"command\": \"new\""));
    }

    #[test]
    fn a_file_is_made_of_nothing_and_never_of_nonsense() {
        for nothing in [None, Some(""), Some(" \n"), Some("{}")] {
            let made: Value = serde_json::from_str(&merge(nothing, "servers", &json!({}), None).unwrap()).unwrap();
            assert_eq!(made, json!({"servers": {"isopod": {}}}));
        }
        for bad in ["[]", "{", "// comment\n{}", "{\"servers\": []}", "{\"a\": 1,}"] {
            assert!(merge(Some(bad), "servers", &json!({}), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_input_is_added_once() {
        let input = json!({"id": "isopod-key"});
        let once = merge(Some("{\"inputs\": [{\"id\": \"x\"}]}"), "servers", &json!({}), Some(&input)).unwrap();
        let value: Value = serde_json::from_str(&once).unwrap();
        assert_eq!(value["inputs"], json!([{"id": "x"}, {"id": "isopod-key"}]));
        assert_eq!(merge(Some(&once), "servers", &json!({}), Some(&input)).unwrap(), once);
    }
}
