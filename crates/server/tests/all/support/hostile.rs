//! Responses of something that is not a guest. The code or the command selects the response.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use isopod_wire::rpc::process::process_event::data_event::Output;
use isopod_wire::rpc::process::process_event::{DataEvent, EndEvent, Event, StartEvent};
use isopod_wire::rpc::process::{ProcessEvent, StartResponse};
use isopod_wire::rpc::{Message as _, MessageField};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

use super::guest::Body;

/// Far more than any limit, but finite.
pub const MUCH: &str = "much";
/// The same without an end.
pub const ENDLESS: &str = "endless";
/// Neither JSON nor frames.
pub const NONSENSE: &str = "nonsense";

/// Ports without an HTTP server: one whose head never ends, one that keeps announcing a response, one whose trailers
/// never end, and one with another protocol.
pub const ENDLESS_HEAD: u16 = 6600;
pub const ENDLESS_PROMISES: u16 = 6601;
pub const ENDLESS_TRAILERS: u16 = 6602;
pub const NO_HTTP: u16 = 6603;
/// Reads the request and never responds.
pub const HANGING: u16 = 6604;

/// How often a piece is sent for [`MUCH`].
const OFTEN: usize = 100;

pub fn execute(code: &str) -> Option<Response<Body>> {
    let picture = serde_json::json!({ "type": "result", "png": "A".repeat(1 << 20) });
    let printed = serde_json::json!({ "type": "stdout", "text": "x".repeat(1 << 20) });
    let piece = Bytes::from(format!("{picture}\n{printed}\n"));
    let end = Bytes::from_static(b"{\"type\":\"end_of_execution\"}\n");
    Some(match code {
        MUCH => streamed("application/json", vec![piece; OFTEN].into_iter().chain([end])),
        ENDLESS => streamed("application/json", std::iter::repeat(piece)),
        NONSENSE => streamed("application/json", [Bytes::from_static(b"\0{[\n")]),
        _ => return None,
    })
}

pub async fn start(request: Request<Incoming>) -> Response<Body> {
    let asked = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let asked_for = |what: &str| asked.windows(what.len()).any(|window| window == what.as_bytes());
    let started = frame(Event::Start(StartEvent { pid: 7 }));
    let piece = frame(Event::Data(DataEvent { output: Some(Output::Stdout(vec![b'x'; 1 << 19].into())) }));
    let end = frame(Event::End(EndEvent { exited: true, status: "exit status 0".to_owned(), ..Default::default() }));
    let end = [end, Bytes::from_static(b"\x02\0\0\0\x02{}")];
    let kind = "application/connect+proto";
    if asked_for(MUCH) {
        return streamed(kind, [started].into_iter().chain(vec![piece; OFTEN]).chain(end));
    }
    if asked_for(ENDLESS) {
        return streamed(kind, [started].into_iter().chain(std::iter::repeat(piece)));
    }
    if asked_for(NONSENSE) {
        return streamed(kind, [started, Bytes::from_static(&[0xff; 64])]);
    }
    streamed(kind, [started].into_iter().chain(end))
}

/// Sends until nobody reads any more.
pub async fn serve(mut stream: DuplexStream, port: u16) {
    let (first, again): (&[u8], &[u8]) = match port {
        ENDLESS_HEAD => (b"HTTP/1.1 200 OK\r\n", b"x-more: and more\r\n"),
        ENDLESS_PROMISES => (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        ENDLESS_TRAILERS => (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x-more: and more\r\n"),
        _ => (b"\0\xff", b"no HTTP at all"),
    };
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).await;
    if port == HANGING {
        let _ = stream.read_to_end(&mut Vec::new()).await;
        return;
    }
    let mut sent = stream.write_all(first).await;
    while sent.is_ok() {
        sent = stream.write_all(again).await;
    }
}

/// Sends on an upgraded connection as fast as possible, and counts. Records when nobody reads any more.
pub async fn flood(mut stream: impl AsyncWrite + Unpin, sent: &AtomicU64, is_stuck: &AtomicBool) {
    loop {
        match tokio::time::timeout(Duration::from_secs(1), stream.write_all(&[b'x'; 4096])).await {
            Ok(Ok(())) => {
                sent.fetch_add(4096, Ordering::Relaxed);
            }
            Ok(Err(_)) => return,
            Err(_) => is_stuck.store(true, Ordering::Relaxed),
        }
    }
}

fn frame(event: Event) -> Bytes {
    let event = ProcessEvent { event: Some(event) };
    let message = StartResponse { event: MessageField::some(event) }.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat().into()
}

fn streamed(kind: &str, pieces: impl IntoIterator<Item = Bytes, IntoIter: Send + Sync + 'static>) -> Response<Body> {
    let frames = stream::iter(pieces).map(|piece| Ok(Frame::data(piece)));
    Response::builder().header("content-type", kind).body(BodyExt::boxed(StreamBody::new(frames))).unwrap()
}
