//! A proxy between a client and a server that behaves like networks and gateways: it delays, loses, cuts and refuses.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type Body = BoxBody<Bytes, hyper::Error>;
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Pass,
    Delay(Duration),
    /// The connection is closed before the server gets the request.
    Reset,
    /// The server handles the request, and the reply is lost.
    ReplyLost,
    /// A gateway responds instead.
    Status(u16, Option<&'static str>),
    /// Nothing is sent in either direction.
    BlackHole,
}

#[derive(Clone)]
pub struct FaultProxy {
    pub address: SocketAddr,
    pub state: Arc<State>,
}

#[derive(Default)]
pub struct State {
    /// For the next requests. Then everything passes, or [`Self::always`].
    pub next: Mutex<VecDeque<Fault>>,
    pub always: Mutex<Option<Fault>>,
    /// Method and path of all requests.
    pub seen: Mutex<Vec<String>>,
    /// The server does not support idempotency keys.
    pub strip_keys: std::sync::atomic::AtomicBool,
}

impl State {
    fn fault(&self) -> Fault {
        let next = self.next.lock().unwrap().pop_front();
        next.or(*self.always.lock().unwrap()).unwrap_or(Fault::Pass)
    }
}

impl FaultProxy {
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        tokio::spawn(accept(listener, server, Arc::clone(&state)));
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn then(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.next.lock().unwrap().extend(faults);
    }

    pub fn always(&self, fault: Option<Fault>) {
        *self.state.always.lock().unwrap() = fault;
    }

    pub fn seen(&self, what: &str) -> usize {
        self.state.seen.lock().unwrap().iter().filter(|seen| seen.starts_with(what)).count()
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, state: Arc<State>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let state = Arc::clone(&state);
        let service = service_fn(move |request| carry(request, server, Arc::clone(&state)));
        let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move { serving.await.ok() });
    }
}

async fn carry(request: Request<Incoming>, server: SocketAddr, state: Arc<State>) -> Result<Response<Body>, Failed> {
    state.seen.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
    match state.fault() {
        Fault::Pass => {}
        Fault::Delay(time) => tokio::time::sleep(time).await,
        Fault::Reset => return Err("reset".into()),
        Fault::BlackHole => std::future::pending().await,
        Fault::Status(status, retry_after) => return Ok(refusal(status, retry_after)),
        Fault::ReplyLost => {
            forward(request, server, &state).await?.into_body().collect().await?;
            return Err("lost".into());
        }
    }
    forward(request, server, &state).await
}

async fn forward(mut request: Request<Incoming>, server: SocketAddr, state: &State) -> Result<Response<Body>, Failed> {
    if state.strip_keys.load(std::sync::atomic::Ordering::Relaxed) {
        request.headers_mut().remove("idempotency-key");
    }
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.map(|body| body.boxed()))
}

fn refusal(status: u16, retry_after: Option<&'static str>) -> Response<Body> {
    let mut response = Response::builder().status(status).header("content-type", "text/html");
    if let Some(wait) = retry_after {
        response = response.header("retry-after", wait);
    }
    let body = Full::new(Bytes::from_static(b"<html>gateway</html>")).map_err(|never| match never {});
    response.body(body.boxed()).unwrap()
}
