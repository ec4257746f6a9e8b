//! Encodes spans as OTLP JSON: ids are hexadecimal, 64-bit numbers are strings.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use crate::config::OtlpConfig;
use crate::span::{FinishedSpan, SpanEvent, Value};

const KIND_INTERNAL: u8 = 1;
const KIND_SERVER: u8 = 2;
const STATUS_ERROR: u8 = 2;

pub(crate) fn encode(config: &OtlpConfig, spans: &[FinishedSpan]) -> Json {
    let name = ("service.name", Value::Text(config.service_name.clone()));
    let version = ("service.version", Value::Text(env!("CARGO_PKG_VERSION").to_owned()));
    let more = config.attributes.iter().map(|(name, value)| (name.as_str(), Value::Text(value.clone())));
    let resource: Vec<(&str, Value)> = [name, version].into_iter().chain(more).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes(&resource) },
        "scopeSpans": [{
            "scope": { "name": "isopod", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }] })
}

fn span(span: &FinishedSpan) -> Json {
    let mut json = json!({
        "traceId": hex::encode(span.trace),
        "spanId": hex::encode(span.id),
        "name": span.name,
        "kind": if span.is_root { KIND_SERVER } else { KIND_INTERNAL },
        "startTimeUnixNano": nanos(span.begin),
        "endTimeUnixNano": nanos(span.end),
        "attributes": attributes(&span.attributes),
        "events": span.events.iter().map(event).collect::<Vec<_>>(),
        "status": if span.failed { json!({ "code": STATUS_ERROR }) } else { json!({}) },
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = hex::encode(parent).into();
    }
    json
}

fn event(event: &SpanEvent) -> Json {
    json!({ "timeUnixNano": nanos(event.at), "name": event.message, "attributes": attributes(&event.attributes) })
}

fn attributes(all: &[(&str, Value)]) -> Vec<Json> {
    all.iter().map(|(name, value)| json!({ "key": name, "value": any(value) })).collect()
}

fn any(value: &Value) -> Json {
    match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
        Value::Flag(flag) => json!({ "boolValue": flag }),
        Value::Real(real) => json!({ "doubleValue": real }),
    }
}

fn nanos(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
}
