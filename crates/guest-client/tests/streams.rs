//! How the client handles what guests and edges send: split anywhere, truncated, broken, silent, slow.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may fail loudly and say why they were skipped")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use isopod_guest_client::guest::{Code, Codec, Event, Guest, GuestError, StartProcess, Upload};
use isopod_guest_client::{ByteStream, Connector, Dial, DialFuture, Origin, TransportError};
use support::frames::{end, end_of_stream, frame, join, keepalive, start, stdout};
use support::server::{Reply, Server, broken_after, frames, json, rpc, silent_after, streamed, text};

fn guest_of_server(server: &Server) -> Guest {
    Guest::through_edge(Connector::tcp(), server.base(), &"i1".parse().unwrap())
}

async fn run_against(reply: impl Fn() -> Reply + Send + Sync + 'static) -> Result<Bytes, GuestError> {
    let server = Server::start(move |_, _| reply()).await;
    Ok(guest_of_server(&server).run("anything").await?.stdout.into())
}

#[tokio::test]
async fn a_stream_that_ends_inside_a_frame_is_an_error() {
    let whole = join(&[start(7), stdout("some output"), end(0), end_of_stream("{}")]);
    // After the last frame, nothing is missing, so every other position is tested.
    for at in 0..whole.len() {
        let part = whole.slice(..at);
        let error = run_until_cut(part).await;
        assert!(
            matches!(error, None | Some(GuestError::Transport(TransportError::Truncated { .. }))),
            "{at}: {error:?}"
        );
        let end_arrived = at >= whole.len() - end_of_stream("{}").len();
        assert_eq!(error.is_none(), end_arrived, "{at}");
    }
}

async fn run_until_cut(part: Bytes) -> Option<GuestError> {
    run_against(move || frames(vec![part.clone()])).await.err()
}

#[tokio::test]
async fn a_connection_that_breaks_is_an_error_after_what_was_said() {
    let server = Server::start(|_, _| rpc(broken_after(vec![start(7), stdout("hi")]))).await;
    let mut process = guest_of_server(&server).start("anything").await.unwrap();
    assert_eq!(process.next().await.unwrap(), Some(Event::Started(7)));
    assert_eq!(process.next().await.unwrap(), Some(Event::Stdout("hi".into())));
    let error = process.next().await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(TransportError::Broken { .. })), "{error:?}");
    assert_eq!(process.next().await.unwrap(), None);
}

#[tokio::test]
async fn an_error_in_the_end_frame_keeps_its_code_and_words() {
    let refusal = r#"{"error":{"code":"deadline_exceeded","message":"too late"},"metadata":{}}"#;
    let error = run_against(move || frames(vec![start(7), stdout("x"), end_of_stream(refusal)])).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), (Some(Code::DeadlineExceeded), "too late"));
    let first = run_against(move || frames(vec![end_of_stream(refusal)])).await.unwrap_err();
    assert_eq!(first.code(), Some(Code::DeadlineExceeded));
}

#[tokio::test]
async fn nonsense_is_named_as_such() {
    let nonsense: Vec<fn() -> Reply> = vec![
        || frames(vec![start(7), end_of_stream("{}")]),
        || frames(vec![stdout("before the start")]),
        || frames(vec![start(7), frame(0, b"\xff\xff\xff")]),
        || frames(vec![start(7), frame(1, b"")]),
        || frames(vec![start(7), Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff])]),
        || frames(vec![start(7), end_of_stream("not json")]),
        || text(200, "<html>a page of something else</html>"),
    ];
    for (number, reply) in nonsense.into_iter().enumerate() {
        let error = run_against(reply).await.unwrap_err();
        assert!(matches!(error, GuestError::Protocol(_)), "{number}: {error:?}");
    }
}

#[tokio::test]
async fn silence_is_an_error_where_a_sign_of_life_is_due() {
    let server = Server::start(|_, _| rpc(silent_after(vec![start(7)]))).await;
    let guest = guest_of_server(&server).with_silence_limit(Some(Duration::from_millis(100)));
    let error = guest.run("anything").await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(TransportError::Silent { .. })), "{error:?}");
    assert!(error.is_timeout());
}

#[tokio::test]
async fn no_answer_is_an_error_in_time() {
    let server = Server::start(|_, _| rpc(silent_after(vec![]))).await;
    let guest = guest_of_server(&server).with_request_timeout(Duration::from_millis(100));
    for error in [guest.start("anything").await.unwrap_err(), guest.stat("/").await.unwrap_err()] {
        assert!(matches!(error, GuestError::Transport(TransportError::Timeout { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn an_upload_that_nobody_takes_is_an_error_and_one_with_a_slow_source_is_not() {
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", deaf.local_addr().unwrap()).parse().unwrap();
    let guest = Guest::through_edge(Connector::tcp(), base, &"i1".parse().unwrap());
    let guest_of_deaf = guest.with_request_timeout(Duration::from_millis(200));
    let error = guest_of_deaf.write_file("/x", vec![0; 50 << 20]).await.unwrap_err();
    assert!(matches!(error, GuestError::Transport(TransportError::Timeout { .. })), "{error:?}");

    let server = Server::start(|_, _| json(200, serde_json::json!([{"name": "x", "path": "/x"}]))).await;
    let slow = stream::unfold(0, |number| async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        (number < 2).then(|| (Ok(Bytes::from_static(b"piece")), number + 1))
    });
    let guest = guest_of_server(&server).with_request_timeout(Duration::from_millis(200));
    assert_eq!(guest.write_file("/x", Upload::stream(slow)).await.unwrap().path, "/x");
    assert_eq!(server.received()[0].body, "piecepiece");
}

#[tokio::test]
async fn callers_may_bring_their_own_way_to_the_server() {
    struct ToServer(String);
    impl Dial for ToServer {
        fn dial(&self, origin: &Origin) -> DialFuture {
            assert_eq!(*origin, Origin { tls: true, host: "box.example".into(), port: 443 });
            let address = self.0.clone();
            Box::pin(async move {
                let stream = tokio::net::TcpStream::connect(address).await?;
                Ok(Box::new(stream) as Box<dyn ByteStream>)
            })
        }
    }
    let server = Server::start(|_, _| frames(vec![start(7), stdout("hi"), end(0), end_of_stream("{}")])).await;
    let connector = Connector::custom(ToServer(server.url.replace("http://", "")));
    let edge = "https://box.example".parse().unwrap();
    let guest = Guest::through_edge(connector, edge, &"i1".parse().unwrap());
    assert_eq!(guest.run("anything").await.unwrap().text(), "hi");
    assert_eq!(server.received()[0].header("host"), "box.example");
}

#[tokio::test]
async fn refusals_of_the_edge_are_told_apart() {
    let server = Server::start(|number, _| match number {
        0 => json(502, serde_json::json!({"sandboxId":"i1","message":"The sandbox was not found","code":502})),
        1 => json(401, serde_json::json!({"code":401,"message":"unauthorized access"})),
        _ => text(404, "<html>no such page</html>"),
    })
    .await;
    let guest = guest_of_server(&server);
    assert!(matches!(guest.start("x").await.unwrap_err(), GuestError::SandboxNotRunning { .. }));
    assert_eq!(guest.start("x").await.unwrap_err().code(), Some(Code::Unauthenticated));
    assert!(guest.read_file("/x").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn frames_are_put_together_however_they_are_cut() {
    let whole = join(&[start(7), stdout("one "), keepalive(), stdout("two"), end(0), end_of_stream("{}")]);
    for cut in [1, 2, 3, 7, 1000] {
        let pieces: Vec<Bytes> = whole.chunks(cut).map(Bytes::copy_from_slice).collect();
        assert_eq!(run_against(move || frames(pieces.clone())).await.unwrap(), "one two");
    }
}

#[tokio::test]
async fn a_guest_without_the_binary_codec_is_asked_in_json_from_then_on() {
    let server = Server::start(|_, request| {
        if request.header("content-type") != "application/connect+json" {
            return text(415, "");
        }
        let events = [
            frame(0, br#"{"event":{"start":{"pid":7}}}"#),
            frame(0, br#"{"event":{"data":{"stdout":"aGk="}}}"#),
            frame(0, br#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#),
            end_of_stream("{}"),
        ];
        streamed(200, "application/connect+json", stream::iter(events.map(Ok)))
    })
    .await;
    let guest = guest_of_server(&server);
    for _ in 0..2 {
        assert_eq!(guest.run("anything").await.unwrap().text(), "hi");
    }
    let types: Vec<String> = server.received().iter().map(|r| r.header("content-type").to_owned()).collect();
    assert_eq!(types, ["application/connect+proto", "application/connect+json", "application/connect+json"]);
}

#[tokio::test]
async fn requests_carry_what_edges_and_guests_want() {
    let server = Server::start(|_, _| frames(vec![start(7), end(0), end_of_stream("{}")])).await;
    let guest = guest_of_server(&server).with_access_token("secret").unwrap().with_user("root");
    let command = StartProcess::shell("ls").user("user").timeout(Duration::from_millis(1500));
    guest.run(command).await.unwrap();
    let json_guest = guest.clone().with_codec(Codec::Json);
    let _ = json_guest.run("ls").await;
    let [first, second] = server.received().try_into().unwrap();
    assert_eq!(first.path, "/process.Process/Start");
    for (name, value) in [
        ("e2b-sandbox-id", "i1"),
        ("e2b-sandbox-port", "49983"),
        ("x-access-token", "secret"),
        ("authorization", "Basic dXNlcjo="),
        ("connect-protocol-version", "1"),
        ("connect-timeout-ms", "1500"),
        ("keepalive-ping-interval", "50"),
    ] {
        assert_eq!(first.header(name), value, "{name}");
    }
    assert_eq!(second.header("authorization"), "Basic cm9vdDo=");
    let message: serde_json::Value = serde_json::from_slice(&second.body[5..]).unwrap();
    let expected = serde_json::json!({"process":{"cmd":"/bin/bash","args":["-l","-c","ls"]},"stdin":false});
    assert_eq!(message, expected);
    assert!(guest.clone().with_access_token("a\nb").is_err());
    assert!(!format!("{guest:?}").contains("secret"));
}

#[tokio::test]
async fn a_slow_reader_slows_the_sender_and_loses_nothing() {
    const PIECE: usize = 32 << 10;
    const COUNT: usize = 2000;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = Server::start(move |_, _| {
        let counted = Arc::clone(&counted);
        rpc(stream::unfold(0, move |number| {
            counted.store(number, Ordering::Relaxed);
            let piece = match number {
                0 => start(7),
                n if n <= COUNT => stdout(vec![n as u8; PIECE]),
                n if n == COUNT + 1 => join(&[end(0), end_of_stream("{}")]),
                _ => return futures::future::ready(None),
            };
            futures::future::ready(Some((Ok(piece), number + 1)))
        }))
    })
    .await;
    let process = guest_of_server(&server).start("anything").await.unwrap();
    let stalled_at = wait_until_still(&sent).await;
    assert!(stalled_at < COUNT, "everything was taken although nobody read");
    let output = process.collect().await.unwrap().stdout;
    assert_eq!(output.len(), PIECE * COUNT);
    assert!(output.chunks(PIECE).enumerate().all(|(n, piece)| piece.iter().all(|byte| *byte == (n + 1) as u8)));
}

/// Waits until the number has not changed for a while.
async fn wait_until_still(number: &AtomicUsize) -> usize {
    let mut last = usize::MAX;
    loop {
        let now = number.load(Ordering::Relaxed);
        if now == last {
            return now;
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
