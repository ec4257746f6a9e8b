//! The client's types and the document. For each type, there is an example of what the document promises, once complete
//! and once minimal. The client parses both, and looks for no field that is not described.

use isopod_client::sandbox::{
    ApiKeyInfo, BegunBuild, BuildLogEntry, BuildProgress, BuildReason, Drained, Lifecycle, LogEntry, NewApiKey, NewKey,
    SandboxDetail, SandboxInfo, SandboxMetric, SnapshotInfo, TemplateBuild, TemplateInfo,
};
use isopod_client::storage::{ListedFile, StorageInfo};
use isopod_client::toolkit::ToolkitConfig;
use serde::de::value::Error as FieldsSeen;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value, json};

use crate::support::Server;

#[tokio::test]
async fn the_client_reads_what_is_described() {
    let server = Server::start().await;
    let document = server.client.get("/openapi.json").await.json;
    agrees::<SandboxInfo>(&document, "ListedSandbox");
    agrees::<SandboxDetail>(&document, "SandboxDetail");
    agrees::<Lifecycle>(&document, "SandboxLifecycle");
    agrees::<SandboxMetric>(&document, "SandboxMetric");
    agrees::<SnapshotInfo>(&document, "Snapshot");
    agrees::<Drained>(&document, "Drained");
    agrees::<LogEntry>(&document, "LogEntry");
    agrees::<ApiKeyInfo>(&document, "ApiKey");
    agrees::<ApiKeyInfo>(&document, "RotatedApiKey");
    agrees::<NewApiKey>(&document, "RotatedApiKey");
    agrees::<TemplateInfo>(&document, "TemplateDetail");
    reads::<TemplateInfo>(&document, "Template");
    agrees::<TemplateBuild>(&document, "Build");
    agrees::<BegunBuild>(&document, "RequestedBuild");
    agrees::<BuildProgress>(&document, "BuildProgress");
    agrees::<BuildLogEntry>(&document, "BuildLogEntry");
    agrees::<BuildReason>(&document, "BuildReason");
    agrees::<StorageInfo>(&document, "StorageInfo");
    agrees::<ListedFile>(&document, "ExecutionFile");
    agrees::<ToolkitConfig>(&document, "ToolkitConfig");
}

/// Other fields that the client sends are refused by the server's strict bodies in the tests that send them.
#[tokio::test]
async fn the_client_sends_what_is_described() {
    let server = Server::start().await;
    let document = server.client.get("/openapi.json").await.json;
    let schema = resolved(&document, &document["components"]["schemas"]["NewApiKey"]);
    let whole = NewKey { name: "n", scope: Some("agent"), agent_id: Some("a"), expires_in: Some(1) };
    let keys = json!(whole).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let described = schema["properties"].as_object().unwrap();
    assert!(keys.iter().all(|key| described.contains_key(key)), "{keys:?}");
    let least = json!(NewKey { name: "n", ..NewKey::default() });
    assert_eq!(schema["required"], json!(least.as_object().unwrap().keys().collect::<Vec<_>>()));
}

fn agrees<T: DeserializeOwned>(document: &Value, name: &str) {
    reads::<T>(document, name);
    let schema = resolved(document, &document["components"]["schemas"][name]);
    let described = schema["properties"].as_object().unwrap();
    for field in fields_of::<T>() {
        assert!(described.contains_key(field), "{name} has no {field}, which the client looks for");
    }
}

fn reads<T: DeserializeOwned>(document: &Value, name: &str) {
    let schema = &document["components"]["schemas"][name];
    assert!(schema.is_object(), "there is no schema {name}");
    for amount in [Amount::Everything, Amount::Least] {
        let example = example(document, schema, amount);
        if let Err(error) = serde_json::from_value::<T>(example.clone()) {
            panic!("{name}: the client cannot read {example}: {error}");
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Amount {
    Everything,
    /// Without optional fields, and with null where that is allowed.
    Least,
}

fn example(document: &Value, schema: &Value, amount: Amount) -> Value {
    let schema = resolved(document, schema);
    if amount == Amount::Least && schema["nullable"] == true {
        return Value::Null;
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => json!("2026-01-31T12:00:00.000Z"),
        Some("string") => json!("i1"),
        Some("integer") => json!(1),
        Some("number") => json!(1.5),
        Some("boolean") => json!(true),
        Some("array") if amount == Amount::Least => json!([]),
        Some("array") => json!([example(document, &schema["items"], amount)]),
        _ => object(document, &schema, amount),
    }
}

fn object(document: &Value, schema: &Value, amount: Amount) -> Value {
    let none = Map::new();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object().unwrap_or(&none).iter();
    let shown = properties.filter(|(name, _)| amount == Amount::Everything || required.contains(&json!(name)));
    shown.map(|(name, schema)| (name.clone(), example(document, schema, amount))).collect()
}

/// A schema without references and combinations: one object with all their fields, `nullable` where null is allowed.
fn resolved(document: &Value, schema: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return resolved(document, document.pointer(reference.strip_prefix('#').unwrap()).unwrap());
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let mut others = choices.iter().filter(|choice| choice["type"] != "null");
        let mut chosen = resolved(document, others.next().unwrap());
        chosen["nullable"] = json!(choices.iter().any(|choice| choice["type"] == "null"));
        return chosen;
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return parts.iter().fold(json!({ "properties": {}, "required": [] }), |mut whole, part| {
            let part = resolved(document, part);
            whole["properties"].as_object_mut().unwrap().extend(part["properties"].as_object().unwrap().clone());
            whole["required"].as_array_mut().unwrap().extend(part["required"].as_array().cloned().unwrap_or_default());
            whole
        });
    }
    let mut schema = schema.clone();
    if let Some(kinds) = schema["type"].as_array().cloned() {
        schema["nullable"] = json!(kinds.contains(&json!("null")));
        schema["type"] = kinds.into_iter().find(|kind| kind != "null").unwrap();
    }
    schema
}

/// The names that a type looks for. None for a type with `flatten`.
fn fields_of<T: DeserializeOwned>() -> Vec<&'static str> {
    let mut seen = Vec::new();
    let stopped = T::deserialize(FieldNames(&mut seen));
    assert!(stopped.is_err());
    seen
}

/// Returns nothing, and records what it was asked for.
struct FieldNames<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = FieldsSeen;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, FieldsSeen> {
        Err(FieldsSeen::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, FieldsSeen> {
        self.0.extend(fields);
        Err(FieldsSeen::custom("all fields are known"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}
