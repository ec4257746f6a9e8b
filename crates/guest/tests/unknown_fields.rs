//! SDKs that are newer than the guest: every RPC method takes messages with fields that it does not know, in both
//! encodings.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;

use common::{Guest, Incoming};
use isopod_wire::rpc::Message;
use isopod_wire::rpc::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, GetWatcherEventsRequest, ListDirRequest, MakeDirRequest, MoveRequest,
    RemoveRequest, RemoveWatcherRequest, StatRequest, WatchDirRequest,
};
use isopod_wire::rpc::process::{
    CloseStdinRequest, ConnectRequest, ListRequest, SendInputRequest, SendSignalRequest, StartRequest,
    StreamInputRequest, UpdateRequest,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The methods, as declared.
const SERVICES: [(&str, &str); 2] = [
    ("process.Process", include_str!("../../wire/proto/process.proto")),
    ("filesystem.Filesystem", include_str!("../../wire/proto/filesystem.proto")),
];
/// A map with names of the user's own.
const LEFT_ALONE: &str = "envs";
/// The field 999 of a message, with one byte in it.
const UNKNOWN_IN_PROTO: [u8; 4] = [0xba, 0x3e, 1, b'x'];

#[test]
fn every_method_takes_fields_that_nobody_knows() {
    let declared = SERVICES.iter().flat_map(|(service, proto)| {
        let methods = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
        methods.map(move |method| format!("{service}/{method}"))
    });
    let declared: BTreeSet<String> = declared.collect();
    for codec in [Codec::Json, Codec::Proto] {
        let client = Client { guest: Guest::new(), codec, called: RefCell::default() };
        client.call_files();
        client.call_processes();
        assert_eq!(client.called.into_inner(), declared, "{codec:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Codec {
    Json,
    Proto,
}

struct Client {
    guest: Guest,
    codec: Codec,
    called: RefCell<BTreeSet<String>>,
}

impl Client {
    fn call_files(&self) {
        let (a, b) = (self.guest.path("a"), self.guest.path("b"));
        self.unary::<MakeDirRequest>("filesystem.Filesystem/MakeDir", json!({ "path": a }));
        self.unary::<StatRequest>("filesystem.Filesystem/Stat", json!({ "path": a }));
        self.unary::<ListDirRequest>("filesystem.Filesystem/ListDir", json!({ "path": a, "depth": 1 }));
        self.unary::<MoveRequest>("filesystem.Filesystem/Move", json!({ "source": a, "destination": b }));
        assert!(b.is_dir());
        let watched = json!({ "path": b, "recursive": true, "includeEntry": true });
        let made = self.unary::<CreateWatcherRequest>("filesystem.Filesystem/CreateWatcher", watched.clone());
        let made: CreateWatcherResponse = match self.codec {
            Codec::Json => serde_json::from_slice(&made).unwrap(),
            Codec::Proto => CreateWatcherResponse::decode_from_slice(&made).unwrap(),
        };
        let watcher = json!({ "watcherId": made.watcher_id });
        self.unary::<GetWatcherEventsRequest>("filesystem.Filesystem/GetWatcherEvents", watcher.clone());
        self.unary::<RemoveWatcherRequest>("filesystem.Filesystem/RemoveWatcher", watcher);
        drop(self.stream::<WatchDirRequest>("filesystem.Filesystem/WatchDir", watched));
        self.unary::<RemoveRequest>("filesystem.Filesystem/Remove", json!({ "path": b }));
        assert!(!b.exists());
    }

    fn call_processes(&self) {
        let cat = json!({ "tag": "cat" });
        let command = json!({ "process": { "cmd": "cat", "envs": { "A": "1" } }, "tag": "cat", "stdin": true });
        let _cat = self.stream::<StartRequest>("process.Process/Start", command);
        self.unary::<ListRequest>("process.Process/List", json!({}));
        let _again = self.stream::<ConnectRequest>("process.Process/Connect", json!({ "process": cat }));
        let input = json!({ "stdin": "eA==" });
        self.unary::<SendInputRequest>("process.Process/SendInput", json!({ "process": cat, "input": input }));
        let messages = [json!({ "start": { "process": cat } }), json!({ "data": { "input": input } })];
        let frames = messages.map(|message| frame(&self.encoded::<StreamInputRequest>(message))).concat();
        let reply = self.post("process.Process/StreamInput", "connect+", &frames).into_reply();
        assert!(reply.body.ends_with(b"\x02\0\0\0\x02{}"), "{}", reply.text());
        self.unary::<CloseStdinRequest>("process.Process/CloseStdin", json!({ "process": cat }));
        let (shell, size) = (json!({ "tag": "shell" }), json!({ "size": { "cols": 80, "rows": 24 } }));
        let terminal = json!({ "process": { "cmd": "/bin/sh" }, "pty": size, "tag": "shell" });
        let _shell = self.stream::<StartRequest>("process.Process/Start", terminal);
        self.unary::<UpdateRequest>("process.Process/Update", json!({ "process": shell, "pty": size }));
        let signal = json!({ "process": shell, "signal": "SIGNAL_SIGKILL" });
        self.unary::<SendSignalRequest>("process.Process/SendSignal", signal);
    }

    /// Returns the body of the response.
    fn unary<M: Message + DeserializeOwned>(&self, method: &str, message: Value) -> Vec<u8> {
        let reply = self.post(method, "", &self.encoded::<M>(message)).into_reply();
        assert_eq!(reply.status, 200, "{method}, {:?}: {}", self.codec, reply.text());
        reply.body
    }

    /// The first frame of a stream is not its end, which is how a refusal comes.
    fn stream<M: Message + DeserializeOwned>(&self, method: &str, message: Value) -> Incoming {
        let mut incoming = self.post(method, "connect+", &frame(&self.encoded::<M>(message)));
        let mut head = [0; 5];
        assert!(incoming.read_exactly(&mut head), "{method}, {:?}", self.codec);
        assert_eq!(head[0], 0, "{method}, {:?}", self.codec);
        incoming
    }

    fn post(&self, method: &str, kind: &str, body: &[u8]) -> Incoming {
        self.called.borrow_mut().insert(method.to_owned());
        let codec = if self.codec == Codec::Json { "json" } else { "proto" };
        let headers = [("Content-Type", &*format!("application/{kind}{codec}"))];
        Incoming::send(self.guest.connect(), "POST", &format!("/{method}"), &headers, body)
    }

    /// The message with unknown fields: in JSON in all of its parts, in protobuf in the outermost.
    fn encoded<M: Message + DeserializeOwned>(&self, message: Value) -> Vec<u8> {
        match self.codec {
            Codec::Json => with_more(message).to_string().into_bytes(),
            Codec::Proto => {
                let mut bytes = serde_json::from_value::<M>(message).unwrap().encode_to_vec();
                bytes.extend(UNKNOWN_IN_PROTO);
                bytes
            }
        }
    }
}

fn with_more(value: Value) -> Value {
    let Value::Object(fields) = value else { return value };
    let deeper = |(name, value): (String, Value)| {
        let value = if name == LEFT_ALONE { value } else { with_more(value) };
        (name, value)
    };
    let unknown = [("fromTheFuture".to_owned(), json!({ "deep": [{ "er": null }] }))];
    Value::Object(fields.into_iter().map(deeper).chain(unknown).collect())
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}
