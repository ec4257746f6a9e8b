//! Traces reach a collector as OpenTelemetry's programs send them, and a collector that is gone costs nothing but them.

use crate::common;
use crate::served;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use isopod_testkit::StateDir;
use serde_json::Value;
use served::{BINARY, Served};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A batch as it came: the head of the request and its body.
struct Batch {
    head: String,
    body: Value,
}

/// Answers the first batch with "later" and takes all others.
fn collector() -> (String, Receiver<Batch>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, batches) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = BufReader::new(stream.unwrap());
            let Some(batch) = read_batch(&mut stream) else { continue };
            let answer = match number {
                0 => "HTTP/1.1 503 Later\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            };
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            if number > 0 && sender.send(batch).is_err() {
                return;
            }
        }
    });
    (url, batches)
}

fn read_batch(stream: &mut BufReader<TcpStream>) -> Option<Batch> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).unwrap() == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    Some(Batch { head, body: serde_json::from_slice(&body).unwrap() })
}

fn spans(batches: &[Batch]) -> Vec<&Value> {
    let of = |batch| -> &Vec<Value> {
        let Batch { body, .. }: &Batch = batch;
        body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap()
    };
    batches.iter().flat_map(of).collect()
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == name);
    &found.unwrap_or_else(|| panic!("{name} is not in {span}"))["value"]
}

#[test]
fn a_request_and_what_it_caused_are_one_trace_of_the_caller() {
    let state = StateDir::new(BINARY);
    let (url, batches) = collector();
    let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "1"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret%21");
    // What is logged and what is traced are separate things.
    command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test").env("ISOPOD_LOG", "error");
    let server = Served::start_command(&state, command);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("x-api-key", server.export("E2B_API_KEY")), ("traceparent", &parent)];
    let body = br#"{"templateID":"base"}"#;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let port = server.port().parse().unwrap();
    let created = runtime.block_on(common::raw::ask(port, "POST", "/v2/sandboxes", &headers, body));
    let id = created.json()["sandboxID"].as_str().unwrap().to_owned();
    server.run(&["kill", &id]).ok();
    server.stop();
    let mut all: Vec<Batch> = Vec::new();
    while let Ok(batch) = batches.recv_timeout(Duration::from_millis(500)) {
        all.push(batch);
    }
    assert!(!all.is_empty(), "nothing was sent");
    for Batch { head, body } in &all {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("x-key: secret!\r\n") && head.contains("content-type: application/json\r\n"), "{head}");
        let resource = &body["resourceSpans"][0]["resource"];
        assert_eq!(attribute(resource, "service.name")["stringValue"], "isopod");
        assert_eq!(attribute(resource, "deployment.environment")["stringValue"], "test");
    }
    let spans = spans(&all);
    let one = |name: &str, parent: &Value| {
        let found: Vec<_> =
            spans.iter().filter(|span| span["name"] == name && span["parentSpanId"] == *parent).collect();
        assert_eq!(found.len(), 1, "{name} below {parent}: {spans:?}");
        assert_eq!(found[0]["traceId"], TRACE);
        *found[0]
    };
    let request = one("request", &CALLER.into());
    assert_eq!(request["kind"], 2);
    assert_eq!(attribute(request, "url.path")["stringValue"], "/v2/sandboxes");
    assert_eq!(attribute(request, "http.response.status_code")["intValue"], "201");
    let create = one("create sandbox", &request["spanId"]);
    assert_eq!(attribute(create, "sandbox")["stringValue"], id.as_str());
    let node = one("node create", &create["spanId"]);
    let nanos = |span: &Value, end: &str| span[end].as_str().unwrap().parse::<u128>().unwrap();
    assert!(nanos(request, "startTimeUnixNano") <= nanos(node, "startTimeUnixNano"));
    assert!(nanos(node, "startTimeUnixNano") <= nanos(node, "endTimeUnixNano"));
    // The kill came without a trace of its own, so it began one.
    let kill = spans.iter().find(|span| attribute_text(span, "http.request.method") == Some("DELETE")).unwrap();
    assert!(kill["traceId"] != TRACE && kill.get("parentSpanId").is_none(), "{kill}");
}

fn attribute_text<'a>(span: &'a Value, name: &str) -> Option<&'a str> {
    let found = span["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == name)?;
    found["value"]["stringValue"].as_str()
}

#[test]
fn without_its_collector_the_server_works_and_stops() {
    let state = StateDir::new(BINARY);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "1"]);
    // It listens and never answers, which is worse than not being there.
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", nobody.local_addr().unwrap()));
    let server = Served::start_command(&state, command);
    let id = server.create(&[]);
    server.run(&["kill", &id]).ok();
    server.stop();
    let mut command = state.isopod().command(&["serve"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317");
    let refused = command.output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("traces"), "{refused:?}");
}
