//! The cost of a peer that is not a guest: endless, dripping and invalid replies end with an error, and none of them takes
//! more memory than its limit.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may fail loudly and say why they were skipped")]

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use isopod_guest_client::guest::{Guest, GuestError, StartProcess};
use isopod_guest_client::interpreter::{Execution, RunCode};
use isopod_guest_client::{ByteStream, Connector, Dial, DialFuture, Interpreter, MemoryBudget, Origin, TransportError};
use support::frames::{end, end_of_stream, keepalive, start, stdout};
use support::server::{Reply, Server, frames, json, rpc, silent_after, streamed, text};

const LIMIT: usize = 1 << 20;

/// Repeats the same piece, as fast as it is read.
fn without_end(piece: Bytes) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::repeat_with(move || Ok(piece.clone()))
}

/// The same piece once a second.
fn dripping(piece: Bytes) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    without_end(piece).then(async |piece| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        piece
    })
}

fn json_stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Reply {
    streamed(200, "application/json", pieces)
}

async fn guest_with(reply: impl Fn() -> Reply + Send + Sync + 'static) -> (Server, Guest) {
    let server = Server::start(move |_, _| reply()).await;
    let guest = Guest::through_edge(Connector::tcp(), server.base(), &"i1".parse().unwrap()).with_reply_limit(LIMIT);
    (server, guest)
}

/// Dials one address, whatever address is requested.
struct To(String);

impl Dial for To {
    fn dial(&self, _: &Origin) -> DialFuture {
        let address = self.0.clone();
        Box::pin(async move { Ok(Box::new(tokio::net::TcpStream::connect(address).await?) as Box<dyn ByteStream>) })
    }
}

async fn execution_with(reply: impl Fn() -> Reply + Send + Sync + 'static, code: RunCode) -> (Server, Execution) {
    let server = Server::start(move |_, _| reply()).await;
    let way = Connector::custom(To(server.url.replace("http://", "")));
    let execution = Interpreter::over(way).with_event_limit(LIMIT).run(code).await.unwrap();
    (server, execution)
}

fn is_too_large(error: &GuestError) -> bool {
    let text = match error {
        GuestError::Transport(TransportError::Broken { source, .. }) => source.to_string(),
        other => other.to_string(),
    };
    text.contains("larger than")
}

#[tokio::test]
async fn replies_without_end_are_refused_once_they_are_too_large() {
    let (_server, guest) = guest_with(|| json_stream(without_end(Bytes::from_static(&[b' '; 8192])))).await;
    for error in [
        guest.stat("/x").await.unwrap_err(),
        guest.metrics().await.unwrap_err(),
        guest.tree("/", 100).await.unwrap_err(),
        guest.write_file("/x", "x").await.unwrap_err(),
    ] {
        assert!(is_too_large(&error), "{error:?}");
    }
}

#[tokio::test]
async fn refusals_without_end_are_refused_too() {
    let reply = || streamed(500, "text/plain", without_end(Bytes::from_static(&[b'x'; 8192])));
    let (_server, guest) = guest_with(reply).await;
    for error in [guest.stat("/x").await.unwrap_err(), guest.read_file("/x").await.unwrap_err()] {
        assert!(is_too_large(&error), "{error:?}");
    }
}

/// The clock advances whenever everything waits, so these take no time.
#[tokio::test(start_paused = true)]
async fn replies_that_drip_are_given_up_after_the_time_of_a_request() {
    let (_server, guest) = guest_with(|| json_stream(dripping(Bytes::from_static(b" ")))).await;
    for error in [
        guest.stat("/x").await.unwrap_err(),
        guest.metrics().await.unwrap_err(),
        guest.tree("/", 100).await.unwrap_err(),
        guest.write_file("/x", "x").await.unwrap_err(),
    ] {
        assert!(matches!(error, GuestError::Transport(TransportError::Timeout { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn replies_that_make_no_sense_are_errors() {
    for reply in ["", "{", "[[[[", "\u{0}", "{\"entries\":{}}", "null"] {
        let (_server, guest) = guest_with(move || text(200, reply)).await;
        assert!(guest.stat("/x").await.is_err() || reply.is_empty(), "{reply:?}");
        assert!(guest.metrics().await.is_err() || reply.starts_with("{\"entries"), "{reply:?}"); // All is optional.
        assert!(guest.tree("/", 100).await.is_err(), "{reply:?}");
        assert!(guest.write_file("/x", "x").await.is_err(), "{reply:?}");
    }
}

#[tokio::test]
async fn a_listing_with_more_than_was_asked_for_is_refused() {
    let entry = serde_json::json!(["file", "a", 1, 2, 3, 4]);
    let listing = serde_json::json!({ "entries": vec![entry; 101], "truncated": false, "unreadable": [] });
    let (_server, guest) = guest_with(move || json(200, listing.clone())).await;
    assert_eq!(guest.tree("/", 101).await.unwrap().entries.len(), 101);
    assert!(matches!(guest.tree("/", 100).await, Err(GuestError::Protocol(_))));
}

#[tokio::test]
async fn a_file_without_end_is_sent_no_faster_than_it_is_read() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let reply = move || {
        let count = Arc::clone(&count);
        let piece = Bytes::from_static(&[b'x'; 8192]);
        let counted = without_end(piece).inspect(move |_| {
            count.fetch_add(8192, Ordering::Relaxed);
        });
        streamed(200, "text/plain", counted)
    };
    let (_server, guest) = guest_with(reply).await;
    let mut download = guest.read_file("/x").await.unwrap();
    let (mut before, mut still) = (0, 0);
    while still < 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = sent.load(Ordering::Relaxed);
        still = if now == before { still + 1 } else { 0 };
        before = now;
        assert!(now < 32 << 20, "{now} bytes were sent and nobody reads them");
    }
    let mut read = 0;
    while read < 8 * LIMIT {
        let piece = download.next().await.unwrap().unwrap();
        assert!(piece.len() <= LIMIT, "{}", piece.len());
        read += piece.len();
    }
}

/// A file may arrive slowly, so only silence ends it, and the reader's own time limit.
#[tokio::test(start_paused = true)]
async fn a_file_that_drips_is_given_up_by_its_reader_and_one_that_stops_by_itself() {
    let (_server, guest) = guest_with(|| streamed(200, "text/plain", dripping(Bytes::from_static(b"x")))).await;
    let download = guest.read_file("/x").await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(600), download.collect()).await.is_err());
    let first = || silent_after(vec![Bytes::from_static(b"x")]);
    let (_server, guest) = guest_with(move || streamed(200, "text/plain", first())).await;
    let error = guest.read_file("/x").await.unwrap().collect().await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(TransportError::Silent { .. })), "{error:?}");
}

#[tokio::test]
async fn output_beyond_what_is_kept_is_read_and_left_out() {
    let flood = || {
        let output = vec![stdout("0123456789"); 1000];
        frames([vec![start(7)], output, vec![end(3), end_of_stream("{}")]].concat())
    };
    let (_server, guest) = guest_with(flood).await;
    let kept = guest.start("x").await.unwrap().collect_up_to(25).await.unwrap();
    assert_eq!((kept.stdout.as_slice(), kept.truncated), (&b"0123456789012345678901234"[..], true));
    assert_eq!(kept.ended.exit_code, 3);
    let all = guest.run("x").await.unwrap();
    assert_eq!((all.stdout.len(), all.truncated), (10_000, false));
}

#[tokio::test]
async fn a_process_that_writes_without_end_is_given_up_after_its_deadline() {
    let flood = || {
        let piece = stdout("x".repeat(32 << 10));
        rpc(stream::iter([Ok(start(7))]).chain(without_end(piece)))
    };
    let (_server, guest) = guest_with(flood).await;
    let process = guest.start(StartProcess::shell("x").timeout(Duration::from_millis(1))).await.unwrap();
    let error = process.collect_up_to(LIMIT).await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(TransportError::Silent { .. })), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_only_shows_that_it_lives_is_given_up_after_its_deadline() {
    let drip = || rpc(stream::iter([Ok(start(7))]).chain(dripping(keepalive())));
    let (_server, guest) = guest_with(drip).await;
    let process = guest.start(StartProcess::shell("x").timeout(Duration::from_secs(5))).await.unwrap();
    let error = process.collect_up_to(LIMIT).await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(TransportError::Silent { .. })), "{error:?}");
}

#[tokio::test]
async fn a_message_that_claims_to_be_large_is_refused_before_it_comes() {
    for length in [(1 << 20) + 1_u32, u32::MAX] {
        let head: Bytes = [&[0][..], &length.to_be_bytes()].concat().into();
        let (_server, guest) = guest_with(move || rpc(silent_after(vec![start(7), head.clone()]))).await;
        let mut process = guest.start("x").await.unwrap();
        process.next().await.unwrap();
        assert!(matches!(process.next().await, Err(GuestError::Protocol(_))));
    }
}

#[tokio::test]
async fn code_whose_line_never_ends_is_refused_once_it_is_too_long() {
    let (_server, execution) =
        execution_with(|| json_stream(without_end(Bytes::from_static(&[b'x'; 8192]))), "x".into()).await;
    assert!(is_too_large(&execution.collect_up_to(LIMIT).await.unwrap_err()));
}

#[tokio::test]
async fn a_result_that_would_take_far_more_memory_than_its_text_is_refused() {
    let bomb = format!("{{\"type\":\"result\",\"json\":[{}0]}}\n", "{},".repeat(100_000));
    let (_server, execution) = execution_with(move || text(200, bomb.clone()), "x".into()).await;
    assert!(is_too_large(&execution.collect_up_to(usize::MAX).await.unwrap_err()));
}

#[tokio::test]
async fn code_that_prints_without_end_is_given_up_at_its_limit_and_what_is_kept_is_bounded() {
    let line = Bytes::from("{\"type\":\"stdout\",\"text\":\"0123456789\"}\n".repeat(200));
    let endless = line.clone();
    let code = || RunCode::new("x").timeout(Duration::from_millis(200));
    let (_server, execution) = execution_with(move || json_stream(without_end(endless.clone())), code()).await;
    assert!(execution.collect_up_to(LIMIT).await.unwrap_err().is_timeout());
    let (_server, execution) = execution_with(move || text(200, line.clone()), code()).await;
    let kept = execution.collect_up_to(1000).await.unwrap();
    assert!(kept.truncated && kept.stdout.len() < 1000 && !kept.stdout.is_empty(), "{kept:?}");
}

#[tokio::test]
async fn large_events_of_many_executions_share_one_budget_and_small_ones_are_kept() {
    const LARGE: usize = 1 << 20;
    let large = format!("{{\"type\":\"stdout\",\"text\":\"{}\"}}\n", "x".repeat(LARGE));
    let lines = format!("{large}{{\"type\":\"stdout\",\"text\":\"small\"}}\n{large}");
    let server = Server::start(move |_, _| text(200, lines.clone())).await;
    let way = Connector::custom(To(server.url.replace("http://", "")));
    let budget = MemoryBudget::new(5 * LARGE);
    let interpreter = Interpreter::over(way).with_memory(budget.clone());
    let (mut first, mut second) = (budget.reserve(), budget.reserve());
    let all = interpreter.run("x").await.unwrap().collect_within(usize::MAX, &mut first).await.unwrap();
    assert_eq!((all.stdout.len(), all.truncated), (2 * LARGE + 5, false));
    assert!(second.grow(3 * LARGE), "what was only received is free again");
    let rest = interpreter.run("x").await.unwrap().collect_within(usize::MAX, &mut budget.reserve()).await.unwrap();
    assert_eq!((rest.stdout.as_str(), rest.truncated), ("small", true));
    drop((first, second));
    let all = interpreter.run("x").await.unwrap().collect_within(usize::MAX, &mut budget.reserve()).await.unwrap();
    assert_eq!((all.stdout.len(), all.truncated), (2 * LARGE + 5, false));
}

#[tokio::test(start_paused = true)]
async fn code_that_drips_is_given_up_at_its_limit() {
    let drip = || json_stream(dripping(Bytes::from_static(b"{\"type\":\"keepalive\"}\n")));
    let (_server, execution) = execution_with(drip, RunCode::new("x").timeout(Duration::from_secs(60))).await;
    assert!(execution.collect_up_to(LIMIT).await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn lines_that_make_no_sense_are_errors() {
    for lines in ["x\n", "{}\n", "[[[[[[\n", "{\"type\":\"stdout\"}\n", "\u{0}\n"] {
        let (_server, execution) = execution_with(move || text(200, lines), "x".into()).await;
        assert!(matches!(execution.collect_up_to(LIMIT).await, Err(GuestError::Protocol(_))), "{lines:?}");
    }
}
