//! JSON schemas of tools, in the plain form that all clients understand.

use std::sync::Arc;

use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde_json::Value;

/// The schema of a tool's arguments: optional ones are left out rather than null, and there are no others.
pub(crate) fn of_arguments<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = of_answer::<T>().as_ref().clone();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(without_null);
    }
    schema.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    Arc::new(schema)
}

/// The schema of a tool's answer.
pub(crate) fn of_answer<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = schema_for_type::<T>().as_ref().clone();
    for key in ["$schema", "title", "description"] {
        schema.remove(key);
    }
    let mut schema = Value::Object(schema);
    without_formats(&mut schema);
    let Value::Object(schema) = schema else { unreachable!("it was made of an object") };
    Arc::new(schema)
}

/// `["string", "null"]` becomes `"string"`.
fn without_null(property: &mut Value) {
    let Value::Object(property) = property else { return };
    if property.get("default").is_some_and(Value::is_null) {
        property.remove("default");
    }
    if let Some(Value::Array(types)) = property.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            property.insert("type".to_owned(), only);
        }
    }
}

/// Rust's `uint32` and others are no formats of JSON Schema, and strict validators refuse them.
fn without_formats(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            object.values_mut().for_each(without_formats);
        }
        Value::Array(all) => all.iter_mut().for_each(without_formats),
        _ => {}
    }
}
