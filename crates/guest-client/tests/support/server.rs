//! An HTTP server whose replies the test defines, piece by piece.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use isopod_guest_client::transport::BaseUrl;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A server on its own port, stopped when dropped.
pub struct Server {
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Responds to every request with the result of `answer`, whose argument counts requests from 0.
    pub async fn start(answer: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&received), Arc::new(answer)));
        Self { url, received, accepting }
    }

    pub fn base(&self) -> BaseUrl {
        self.url.parse().unwrap()
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept<F>(listener: TcpListener, received: Arc<Mutex<Vec<Received>>>, answer: Arc<F>)
where
    F: Fn(usize, &Received) -> Reply + Send + Sync + 'static,
{
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (received, answer) = (Arc::clone(&received), Arc::clone(&answer));
        let service = service_fn(move |request: Request<Incoming>| {
            let (received, answer) = (Arc::clone(&received), Arc::clone(&answer));
            async move {
                let request = record(request).await;
                let number = {
                    let mut all = received.lock().unwrap();
                    all.push(request.clone());
                    all.len() - 1
                };
                Ok::<_, Infallible>(answer(number, &request))
            }
        });
        tokio::spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn record(request: Request<Incoming>) -> Received {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    Received { method: head.method, path: head.uri.to_string(), headers: head.headers, body }
}

/// A reply with this text.
pub fn text(status: u16, body: impl Into<Bytes>) -> Reply {
    streamed(status, "application/json", stream::iter([Ok(body.into())]))
}

pub fn json(status: u16, body: serde_json::Value) -> Reply {
    text(status, body.to_string())
}

/// A reply whose pieces are sent one by one. An error breaks the connection.
pub fn streamed(
    status: u16,
    content_type: &str,
    pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Reply {
    let body = BodyExt::boxed_unsync(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))));
    let mut reply = Response::new(body);
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    reply.headers_mut().insert("content-type", content_type.parse().unwrap());
    reply
}

/// A binary RPC stream.
pub fn frames(pieces: Vec<Bytes>) -> Reply {
    rpc(stream::iter(pieces.into_iter().map(Ok)))
}

pub fn rpc(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Reply {
    streamed(200, "application/connect+proto", pieces)
}

/// The pieces, and then the connection breaks.
pub fn broken_after(pieces: Vec<Bytes>) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    // The break comes a little later, so that the earlier pieces are sent first.
    let pause = stream::once(async {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        Err(io::Error::other("broken by the test"))
    });
    stream::iter(pieces.into_iter().map(Ok)).chain(pause)
}

/// The pieces, and then nothing forever.
pub fn silent_after(pieces: Vec<Bytes>) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::iter(pieces.into_iter().map(Ok)).chain(stream::pending())
}
