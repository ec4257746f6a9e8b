//! The guest's HTTP routes, tested with the real binary: credentials, uploads and downloads, and misbehaving clients.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};

use base64::Engine;
use common::{Guest, Incoming, TOKEN, shell};
use flate2::Compression;
use serde_json::json;
use sha2::{Digest, Sha256};

const OCTETS: (&str, &str) = ("Content-Type", "application/octet-stream");

fn put(guest: &Guest, path: &std::path::Path, data: &[u8]) -> common::Reply {
    guest.request("POST", &format!("/files?path={}", path.display()), &[OCTETS], data)
}

fn fetch(guest: &Guest, path: &std::path::Path, headers: &[(&str, &str)]) -> common::Reply {
    guest.request("GET", &format!("/files?path={}", path.display()), headers, b"")
}

#[test]
fn nothing_but_health_is_served_before_init() {
    let guest = Guest::bare(&[]);
    assert_eq!(guest.get("/health").status, 204);
    assert_eq!(guest.get("/envs").status, 503);
    assert_eq!(guest.get("/files?path=/etc/passwd").status, 503);
    assert_eq!(guest.call("process.Process/List", &json!({})).status, 503);
    assert_eq!(guest.request("POST", "/init", &[], b"{}").status, 404);
    guest.init(&json!({}));
    assert_eq!(guest.get("/envs").json(), json!({}));
}

#[test]
fn a_refusal_leaves_the_connection_good_for_the_next_request() {
    let guest = Guest::bare(&[]);
    guest.init(&json!({"defaultUser": "root", "accessToken": TOKEN}));
    let mut stream = guest.connect();
    for _ in 0..2 {
        let head = "POST /process.Process/List HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // The body arrives in a packet of its own, as from a proxy.
        std::thread::sleep(std::time::Duration::from_millis(50));
        stream.write_all(b"{}").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"if supported\"}") {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "closed after {}", String::from_utf8_lossy(&answer));
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 401"));
    }
}

#[test]
fn without_the_token_nothing_works_but_signed_files() {
    let guest = Guest::bare(&[]);
    guest.init(&json!({"defaultUser": "root", "accessToken": TOKEN, "envVars": {"A": "1"}}));
    let message = "unauthorized access, please provide a valid access token or method signing if supported";
    assert_eq!(guest.get("/envs").error(), (401, message.into()));
    assert_eq!(guest.call("process.Process/List", &json!({})).error(), (401, message.into()));
    let wrong = guest.request("GET", "/envs", &[("X-Access-Token", "no")], b"");
    assert_eq!(wrong.status, 401);
    assert_eq!(guest.request("GET", "/envs", &[("X-Access-Token", TOKEN)], b"").json(), json!({"A": "1"}));

    let file = guest.path("a b");
    std::fs::write(&file, "signed").unwrap();
    let path = file.display().to_string();
    let sign = |expiration: &str| {
        let text = format!("{path}:read:root:{TOKEN}{expiration}");
        let hash = base64::engine::general_purpose::STANDARD_NO_PAD.encode(Sha256::digest(text));
        format!("v1_{hash}").replace('+', "%2B").replace('/', "%2F")
    };
    let url = format!("/files?path={}&username=root", path.replace(' ', "+"));
    assert_eq!(guest.get(&url).error(), (401, "missing signature query parameter".into()));
    assert_eq!(guest.get(&format!("{url}&signature=v1_x")).error(), (401, "invalid signature".into()));
    let expired = guest.get(&format!("{url}&signature={}&signature_expiration=5", sign(":5")));
    assert_eq!(expired.error(), (401, "signature is already expired".into()));
    assert_eq!(guest.get(&format!("{url}&signature={}", sign(""))).text(), "signed");
    let header = guest.request("GET", &url, &[("X-Access-Token", "no")], b"");
    assert_eq!(header.error(), (401, "access token present in header but does not match".into()));
}

#[test]
fn init_again_replaces_everything() {
    let guest = Guest::new();
    guest.init(&json!({"envVars": {"B": "2"}, "accessToken": TOKEN}));
    assert_eq!(guest.get("/envs").status, 401);
    guest.init(&json!({}));
    assert_eq!(guest.get("/envs").json(), json!({}));
}

#[test]
fn files_that_are_not_regular_are_neither_read_nor_written() {
    let guest = Guest::new();
    let fifo = guest.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let not_regular = (400, format!("path '{}' is not a regular file", fifo.display()));
    assert_eq!(fetch(&guest, &fifo, &[]).error(), not_regular);
    assert_eq!(put(&guest, &fifo, b"x").error(), not_regular);
    assert_eq!(fetch(&guest, "/dev/zero".as_ref(), &[]).status, 400);
    let dir = guest.dir.path();
    assert_eq!(fetch(&guest, dir, &[]).error(), (400, format!("path '{}' is a directory", dir.display())));
    assert_eq!(put(&guest, dir, b"x").error(), (400, format!("path is a directory: {}", dir.display())));
    assert_eq!(fetch(&guest, "/no/such".as_ref(), &[]).error(), (404, "path '/no/such' does not exist".into()));
    assert_eq!(put(&guest, &fifo.join("below"), b"x").status, 400);
    assert_eq!(guest.get("/files?path=a%00b").status, 400);
    assert_eq!(guest.get("/files?path=/x&username=ghost").status, 401);
}

#[test]
fn a_file_comes_back_as_it_was_sent() {
    let guest = Guest::new();
    let path = guest.path("some/deep/file");
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let reply = put(&guest, &path, &data);
    assert_eq!(reply.json(), json!([{"name": "file", "type": "file", "path": path}]));
    let reply = fetch(&guest, &path, &[]);
    assert_eq!((reply.status, reply.header("content-length")), (200, Some("3000000")));
    assert_eq!(reply.header("content-disposition"), Some("inline; filename=file"));
    assert!(reply.body == data);
    let part = fetch(&guest, &path, &[("Range", "bytes=1000000-1999999"), ("Accept-Encoding", "gzip")]);
    assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 1000000-1999999/3000000")));
    assert!(part.body == data[1_000_000..2_000_000]);
    assert_eq!(fetch(&guest, &path, &[("Range", "bytes=3000000-")]).status, 416);
    assert_eq!(fetch(&guest, &path, &[("Accept-Encoding", "identity;q=0")]).status, 406);
    let modified = reply.header("last-modified").unwrap();
    assert_eq!(fetch(&guest, &path, &[("If-Modified-Since", modified)]).status, 304);
    put(&guest, &path, b"");
    assert_eq!(fetch(&guest, &path, &[("Range", "bytes=0-")]).status, 200);
    assert!(fetch(&guest, "/proc/self/status".as_ref(), &[]).text().contains("isopod-guest"));
}

#[test]
fn gzip_works_both_ways() {
    let guest = Guest::new();
    let path = guest.path("file");
    let data = b"some text ".repeat(100_000);
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(&data).unwrap();
    let packed = packer.finish().unwrap();
    let url = format!("/files?path={}", path.display());
    let reply = guest.request("POST", &url, &[OCTETS, ("Content-Encoding", "gzip")], &packed);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(std::fs::read(&path).unwrap() == data);
    let reply = fetch(&guest, &path, &[("Accept-Encoding", "gzip, deflate")]);
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&reply.body[..]).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == data);
    assert_eq!(guest.request("POST", &url, &[OCTETS, ("Content-Encoding", "gzip")], b"no gzip").status, 400);
    assert_eq!(guest.request("POST", &url, &[OCTETS, ("Content-Encoding", "br")], b"").status, 400);
}

#[test]
fn a_form_carries_several_files() {
    let guest = Guest::new();
    let (a, b) = (guest.path("a"), guest.path("x/b"));
    let form = |paths: &[&std::path::Path]| {
        let mut form = String::new();
        for (n, path) in paths.iter().enumerate() {
            let disposition = format!("form-data; name=\"file\"; filename=\"{}\"", path.display());
            form.push_str(&format!("--X\r\nContent-Disposition: {disposition}\r\n\r\ncontent {n}\r\n"));
        }
        form + "--X--\r\n"
    };
    let headers = [("Content-Type", "multipart/form-data; boundary=X"), ("X-Metadata-Kind", "note")];
    let send = |form: &str| guest.request("POST", "/files", &headers, form.as_bytes());
    let reply = send(&form(&[&a, &b]));
    assert_eq!(reply.json()[1], json!({"name": "b", "type": "file", "path": b, "metadata": {"kind": "note"}}));
    assert_eq!(std::fs::read_to_string(&b).unwrap(), "content 1");
    let stat = guest.call("filesystem.Filesystem/Stat", &json!({"path": a})).json();
    assert_eq!(stat["entry"]["metadata"], json!({"kind": "note"}));
    let twice = send(&form(&[&a, &a])).error();
    assert!(twice.0 == 400 && twice.1.starts_with("you cannot upload multiple files to the same path"), "{twice:?}");
    assert_eq!(send("--X\r\nbroken").status, 400);
    assert_eq!(guest.request("POST", "/files", &[("Content-Type", "text/plain")], b"x").status, 400);
    assert_eq!(guest.request("POST", "/files", &[OCTETS], b"x").status, 400);
}

/// SDKs may be newer than the guest.
#[test]
fn parts_parameters_and_fields_that_nobody_knows_are_ignored() {
    let guest = Guest::new();
    let path = guest.path("a");
    let unknown = "--X\r\nContent-Disposition: form-data; name=\"fromTheFuture\"\r\n\r\n{}\r\n";
    let file = "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\ncontent\r\n";
    let form = format!("{unknown}{file}{unknown}--X--\r\n");
    let headers = [("Content-Type", "multipart/form-data; boundary=X")];
    let url = format!("/files?path={}&fromTheFuture=1", path.display());
    let reply = guest.request("POST", &url, &headers, form.as_bytes());
    assert_eq!(reply.json(), json!([{"name": "a", "type": "file", "path": path}]));
    assert_eq!(guest.get(&url).text(), "content");
    let stat = json!({"path": path, "fromTheFuture": {"deep": [1]}});
    assert_eq!(guest.call("filesystem.Filesystem/Stat", &stat).json()["entry"]["name"], "a");
}

#[test]
fn files_belong_to_the_user_who_asked() {
    use std::os::unix::fs::MetadataExt;
    let guest = Guest::new();
    let path = guest.path("n/file");
    let url = format!("/files?path={}&username=nobody", path.display());
    assert_eq!(guest.request("POST", &url, &[OCTETS], b"x").status, 200);
    let (file, dir) = (path.metadata().unwrap(), path.parent().unwrap().metadata().unwrap());
    assert_eq!((file.uid(), dir.uid(), file.mode() & 0o777), (65534, 65534, 0o644));
}

#[test]
fn composing_concatenates_and_cleans_up() {
    let guest = Guest::new();
    let paths = ["p1", "p2", "out"].map(|name| guest.path(name));
    std::fs::write(&paths[0], "one").unwrap();
    std::fs::write(&paths[1], "two").unwrap();
    let compose = |sources: &[&std::path::PathBuf], destination: &std::path::Path| {
        // A field of a newer SDK is ignored.
        let body = json!({"source_paths": sources, "destination": destination, "later": {"a": 1}}).to_string();
        guest.request("POST", "/files/compose", &[("Content-Type", "application/json")], body.as_bytes())
    };
    assert_eq!(compose(&[], &paths[2]).status, 400);
    assert_eq!(compose(&[&paths[0], &guest.path("none")], &paths[2]).status, 404);
    assert_eq!(compose(&[&paths[0]], &paths[0]).status, 400);
    assert_eq!(
        compose(&[&paths[0], &paths[1]], &paths[2]).json(),
        json!({"name": "out", "type": "file", "path": paths[2]})
    );
    assert_eq!(std::fs::read_to_string(&paths[2]).unwrap(), "onetwo");
    assert!(!paths[0].exists() && !paths[1].exists());
}

#[test]
fn browsers_may_call_from_anywhere() {
    let guest = Guest::bare(&[]);
    let headers = [("Origin", "http://a.example"), ("Access-Control-Request-Headers", "authorization")];
    let reply = guest.request("OPTIONS", "/process.Process/Start", &headers, b"");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some("*")));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization"));
    assert_eq!(guest.request("GET", "/envs", &headers, b"").header("access-control-allow-origin"), Some("*"));
}

#[test]
fn clients_that_misbehave_get_clear_answers() {
    let guest = Guest::new();
    let start = "/process.Process/Start";
    assert_eq!(guest.request("POST", start, &[("Content-Type", "text/plain")], b"x").status, 415);
    assert_eq!(guest.request("GET", start, &[], b"").status, 405);
    assert_eq!(guest.request("POST", "/process.Process/Nope", &[], b"").rpc_error().0, "unimplemented");
    assert_eq!(guest.get("/nope").status, 404);
    let stream = |frame: &[u8]| {
        let reply = guest.request("POST", start, &[("Content-Type", "application/connect+json")], frame);
        let end: serde_json::Value = serde_json::from_slice(&reply.body[5..]).unwrap();
        end["error"]["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(stream(b""), "invalid_argument");
    assert_eq!(stream(b"\0\0\0\0\x05{"), "invalid_argument");
    assert_eq!(stream(b"\0\0\0\0\x01{"), "invalid_argument");
    assert_eq!(stream(b"\0\xff\xff\xff\xff"), "resource_exhausted");
    assert_eq!(stream(b"\x01\0\0\0\x02{}"), "unimplemented");
    let unary =
        |body: &[u8]| guest.request("POST", "/process.Process/List", &[("Content-Type", "application/json")], body);
    assert_eq!(unary(b"nonsense").rpc_error().0, "invalid_argument");
    assert_eq!(unary("[".repeat(100_000).as_bytes()).rpc_error().0, "invalid_argument");
    let long = "x".repeat(2 << 20);
    assert_eq!(guest.request("GET", "/health", &[("X-Long", &long)], b"").status, 431);
    let mut raw = guest.connect();
    raw.write_all(b"\x16\x03\x01 no http\r\n\r\n").unwrap();
    assert_eq!(Incoming::read_head(raw).status, 400);
    assert_eq!(guest.run("echo still here").text(), "still here\n");
}

#[test]
fn a_connection_serves_one_call_after_the_other() {
    let guest = Guest::new();
    let stream = guest.connect();
    for n in 0..3 {
        let headers = [("Content-Type", "application/connect+json")];
        let body = common::envelope(&shell(&format!("echo {n}")));
        let incoming = Incoming::send(stream.try_clone().unwrap(), "POST", "/process.Process/Start", &headers, &body);
        assert_eq!(common::Events::new(incoming).finish().text(), format!("{n}\n"));
    }
}

#[test]
fn protobuf_is_spoken_too() {
    use isopod_wire::rpc::process::{ListResponse, ProcessConfig, StartRequest, StartResponse};
    use isopod_wire::rpc::{Message, MessageField};
    let guest = Guest::new();
    let config = ProcessConfig { cmd: "echo".into(), args: vec!["hi".into()], ..Default::default() };
    let request = StartRequest { process: MessageField::some(config), ..Default::default() };
    let payload = request.encode_to_vec();
    let frame = [&[0][..], &(payload.len() as u32).to_be_bytes(), &payload].concat();
    let reply =
        guest.request("POST", "/process.Process/Start", &[("Content-Type", "application/connect+proto")], &frame);
    let mut rest = &reply.body[..];
    let mut kinds = Vec::new();
    while rest[0] == 0 {
        let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
        let message = StartResponse::decode_from_slice(&rest[5..5 + length]).unwrap();
        kinds.push(format!("{:?}", message.event.event.as_ref().unwrap()));
        rest = &rest[5 + length..];
    }
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    assert!(kinds[1].contains("Stdout") && kinds[2].starts_with("End"), "{kinds:?}");
    let list = guest.request("POST", "/process.Process/List", &[("Content-Type", "application/proto")], b"");
    assert!(ListResponse::decode_from_slice(&list.body).unwrap().processes.is_empty());
}

#[test]
fn metrics_have_values() {
    let metrics = Guest::new().get("/metrics").json();
    for name in ["ts", "cpu_count", "mem_total", "mem_used", "mem_total_mib", "disk_used", "disk_total"] {
        assert!(metrics[name].as_u64().unwrap() > 0, "{name}: {metrics}");
    }
    assert!(metrics["cpu_used_pct"].is_number() && metrics["mem_cache"].is_number());
}
