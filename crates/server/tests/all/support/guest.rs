//! The services inside the sandboxes of the fake node.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use isopod_wire::delivery;
use isopod_wire::delivery::Report;
use isopod_wire::node::Target;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio_util::sync::CancellationToken;

use super::hostile;

/// How many zeros `/connect-much` sends.
pub const MUCH: usize = 200 << 10;

pub(super) type Body = BoxBody<Bytes, hyper::Error>;

/// The log that a guest keeps for its host. Positions are bytes, as in the real one.
#[derive(Default)]
pub struct Printed {
    /// Stream and text.
    pub blocks: Mutex<Vec<(&'static str, String)>>,
    /// Returned instead of the real log.
    pub lie: Mutex<Option<String>>,
    /// Responds neither for the log nor for a report channel.
    pub hangs: AtomicBool,
    pub asked: AtomicU64,
    /// What the edge reported about output streams.
    pub reports: Mutex<Vec<Report>>,
    /// Started streams, and open connections.
    pub streams: AtomicU64,
    pub connections: AtomicU64,
    /// What responds in the guest's place: a port of `hostile`, or 0 for the guest itself.
    pub imposter: AtomicU16,
    /// What `/ws-flood` has sent, and whether nobody reads any more of it.
    pub flooded: AtomicU64,
    pub is_flood_stuck: AtomicBool,
}

impl Printed {
    pub fn print(&self, stream: &'static str, text: &str) {
        self.blocks.lock().unwrap().push((stream, text.to_owned()));
    }

    async fn page(&self, query: Option<&str>) -> String {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if let Some(lie) = &*self.lie.lock().unwrap() {
            return lie.clone();
        }
        let after: usize = query.and_then(|query| query.strip_prefix("after=")).unwrap().parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        let (mut at, mut shown) = (0, Vec::new());
        for (stream, text) in &*self.blocks.lock().unwrap() {
            if at >= after {
                shown.push(serde_json::json!({ "at": now, "pid": 7, "stream": stream, "text": text }));
            }
            at += text.len() + 1;
        }
        serde_json::json!({ "next": at, "more": false, "skipped": 0, "blocks": shown }).to_string()
    }
}

pub async fn serve(stream: DuplexStream, target: Target, gone: CancellationToken, printed: Arc<Printed>) {
    let open = Open::count(&printed);
    let imposter = match target {
        Target::Port(port) => port,
        _ => printed.imposter.load(Ordering::Relaxed),
    };
    if (hostile::ENDLESS_HEAD..=hostile::HANGING).contains(&imposter) {
        return hostile::serve(stream, imposter).await;
    }
    match target {
        Target::Port(HEAD_ECHO) => return echo_head(stream).await,
        Target::Port(BREAKS_OFF) => return break_off(stream).await,
        _ => {}
    }
    let served = Arc::new(AtomicU64::new(0));
    let service = service_fn(move |request: Request<Incoming>| {
        let (printed, before) = (Arc::clone(&printed), served.fetch_add(1, Ordering::Relaxed));
        async move {
            // Closes a kept-alive connection without a response.
            if before > 0 && request.headers().contains_key("x-hang-up") {
                return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
            }
            answer(target, printed, request).await.map_err(|never| match never {})
        }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        () = gone.cancelled() => {}
        _ = serving.with_upgrades() => {}
    }
    drop(open);
}

/// The port of a service that returns the head of a request as received, with headers of odd spelling.
pub const HEAD_ECHO: u16 = 7070;

async fn echo_head(stream: DuplexStream) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.is_ok_and(|read| read > 0) {}
    let length = head.len();
    let answer = format!("HTTP/1.1 200 OK\r\nX-oDD-Name: 1\r\nset-cookie: a\r\ncontent-LENGTH: {length}\r\n\r\n{head}");
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// The port of a service whose Connect stream breaks off with its first frame.
pub const BREAKS_OFF: u16 = 7071;

async fn break_off(mut stream: DuplexStream) {
    let _ = stream.read(&mut [0; 4096]).await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\ntransfer-encoding: chunked\r\n\r\n";
    let _ = stream.write_all(format!("{head}7\r\n\0\0\0\0\u{2}{{}}\r\n").as_bytes()).await;
}

/// A connection that is counted.
struct Open(Arc<Printed>);

impl Open {
    fn count(printed: &Arc<Printed>) -> Self {
        printed.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(printed))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn answer(
    target: Target,
    printed: Arc<Printed>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(match path.as_str() {
        "/health" => status(StatusCode::NO_CONTENT),
        "/logs" if request.headers().contains_key("x-isopod-control") => {
            Response::new(text(&printed.page(request.uri().query()).await))
        }
        "/execute" => execute(request).await,
        "/process.Process/Start" => hostile::start(request).await,
        "/files/tree" => Response::new(text(r#"{"entries":[],"truncated":false,"unreadable":[]}"#)),
        "/files" if request.method() == http::Method::POST => {
            let _ = request.into_body().collect().await;
            Response::new(text(r#"[{"name":"file","path":"/home/user/file","type":"file"}]"#))
        }
        // A page of a stranger, with every header that affects its whole origin.
        "/files" if request.uri().query().is_some_and(|query| query.contains("evil.html")) => {
            let cookie = format!("{:?}", request.headers().get("cookie"));
            Response::builder()
                .header("content-type", "text/html")
                .header("content-disposition", "inline; filename=evil.html")
                .header("content-security-policy", "script-src *")
                .header("set-cookie", "session=mine")
                .header("clear-site-data", "\"*\"")
                .header("service-worker-allowed", "/")
                .header("alt-svc", "h2=\"evil.example:443\"")
                .header("x-seen-cookie", cookie)
                .body(text("<script>steal()</script>"))
                .unwrap()
        }
        "/echo" => Response::new(request.into_body().boxed()),
        "/stream" => Response::new(first_then_silence(b"first\n")),
        "/connect" => {
            let stream = first_then_silence(b"\0\0\0\0\x02{}");
            Response::builder().header("content-type", "application/connect+json").body(stream).unwrap()
        }
        "/connect-much" => {
            let stream = first_then_silence(&[0; MUCH]);
            Response::builder().header("content-type", "application/connect+json").body(stream).unwrap()
        }
        "/cut" => {
            let stream = first_then_silence(b"\0\0\0\0\x02{");
            Response::builder().header("content-type", "application/connect+json").body(stream).unwrap()
        }
        "/ws" => upgrade(request, echo),
        "/ws-flood" => upgrade(request, |stream| async move {
            hostile::flood(stream, &printed.flooded, &printed.is_flood_stuck).await;
        }),
        delivery::PATH if request.headers().contains_key("x-isopod-control") => {
            if printed.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            reports(printed, request)
        }
        "/process.Process/Connect"
            if request.headers().get(delivery::CHANNEL_HEADER).is_some_and(|name| name == "7") =>
        {
            let stream = first_then_silence(b"\0\0\0\0\x02{}");
            let number = printed.streams.fetch_add(1, Ordering::Relaxed) + 1;
            let head = Response::builder().header(delivery::STREAM_HEADER, number);
            head.header("content-type", "application/connect+json").body(stream).unwrap()
        }
        "/cookie" => Response::builder().header("set-cookie", "a=b").body(text("cookie")).unwrap(),
        _ => describe(target, &request),
    })
}

/// Simulates code: it prints itself, and fails if it says so.
async fn execute(request: Request<Incoming>) -> Response<Body> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let asked: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let code = asked["code"].as_str().unwrap_or_default();
    if let Some(response) = hostile::execute(code) {
        return response;
    }
    let mut lines = serde_json::json!({ "type": "stdout", "text": code }).to_string();
    if code.contains("raise") {
        let error = serde_json::json!({ "type": "error", "name": "E", "value": "v", "traceback": "t" });
        lines = format!("{lines}\n{error}");
    }
    Response::new(text(&format!("{lines}\n{{\"type\":\"end_of_execution\"}}\n")))
}

fn describe(target: Target, request: &Request<Incoming>) -> Response<Body> {
    let headers: BTreeMap<_, _> =
        request.headers().iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or(""))).collect();
    let uri = request.uri().to_string();
    let body = serde_json::json!({ "target": format!("{target:?}"), "uri": uri, "headers": headers });
    Response::builder().header("content-type", "application/json").body(text(&body.to_string())).unwrap()
}

/// One chunk, and then nothing forever.
fn first_then_silence(first: &'static [u8]) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, hyper::Error>>(1);
    sender.try_send(Ok(Frame::data(Bytes::from_static(first)))).unwrap();
    let stream = futures::stream::unfold((receiver, sender), |(mut receiver, sender)| async move {
        receiver.recv().await.map(|frame| (frame, (receiver, sender)))
    });
    StreamBody::new(Box::pin(stream)).boxed()
}

fn upgrade<F: Future<Output = ()> + Send + 'static>(
    mut request: Request<Incoming>,
    speak: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Response<Body> {
    let switching = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = switching.await else { return };
        speak(TokioIo::new(upgraded)).await;
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    response.header("connection", "upgrade").header("upgrade", "websocket").body(empty()).unwrap()
}

async fn echo(mut stream: TokioIo<Upgraded>) {
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// A channel on which the edge reports what its clients have received.
fn reports(printed: Arc<Printed>, mut request: Request<Incoming>) -> Response<Body> {
    let switching = hyper::upgrade::on(&mut request);
    let open = Open::count(&printed);
    tokio::spawn(async move {
        let _open = open;
        let Ok(upgraded) = switching.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let mut report = [0; Report::LEN];
        while stream.read_exact(&mut report).await.is_ok() {
            printed.reports.lock().unwrap().push(Report::decode(&report));
        }
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header(delivery::CHANNEL_HEADER, 7);
    response.header("connection", "upgrade").header("upgrade", delivery::PROTOCOL).body(empty()).unwrap()
}

fn status(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(empty()).unwrap()
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

fn text(text: &str) -> Body {
    Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed()
}
