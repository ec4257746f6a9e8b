//! What a hop costs: a request to a service by TCP, and the same over a hop between two servers of a cluster. Both are in
//! this process, each with a runtime of its own, on loopback. Needs PostgreSQL, as the tests do.
//!
//! `cargo run --release -p isopod-peer --example hop`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it is a measurement")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt as _;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use isopod_api::Elsewhere;
use isopod_peer::{
    ByLoad, Cluster, ClusterSettings, Here, Identity, JoinTarget, JoinToken, Origin, Question, ServerId,
};
use isopod_store::testing::postgres::database_for;
use isopod_store::{Store, server_id};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const WARM_UP: usize = 300;
const REQUESTS: usize = 5000;
const ROUNDS: usize = 5;
const LARGE: usize = 512 << 20;
const CHUNK: usize = 64 << 10;

fn main() {
    let (near, far) = (runtime(), runtime());
    let dir = tempfile::tempdir().unwrap();
    let url = near.block_on(database_for(dir.path()));
    let other = far.block_on(begin_far(&url));
    let (cluster, _dir) = near.block_on(join_near(&url, &other));
    near.block_on(async {
        let (mut direct, mut hop) = (Vec::new(), Vec::new());
        // In turns, so that both have the same share of what else the machine does.
        for _ in 0..ROUNDS {
            direct.extend(times(|| ask_directly(other.service)).await);
            hop.extend(times(|| ask_over_hop(&cluster, &other.id, "/")).await);
        }
        let (direct, hop) = (Percentiles::of(direct), Percentiles::of(hop));
        println!("request    direct p50 {:>9.1?}  p99 {:>9.1?}", direct.p50, direct.p99);
        println!("           hop    p50 {:>9.1?}  p99 {:>9.1?}", hop.p50, hop.p99);
        println!("           the hop adds {:.1?} to the p50", hop.p50.saturating_sub(direct.p50));
        let (mut direct, mut hop) = (0.0_f64, 0.0_f64);
        for _ in 0..ROUNDS {
            direct = direct.max(rate(load_directly(other.service).await).await);
            hop = hop.max(rate(ask_over_hop(&cluster, &other.id, "/large").await).await);
        }
        println!("throughput direct {direct:.0} MiB/s, hop {hop:.0} MiB/s: {:.0} %", hop / direct * 100.0);
    });
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The far server.
struct Far {
    id: ServerId,
    target: JoinTarget,
    /// Its service without a hop.
    service: SocketAddr,
    _dir: tempfile::TempDir,
}

async fn begin_far(url: &str) -> Far {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::connect(url, dir.path(), "far").await.unwrap();
    let identity = isopod_peer::init(&store, dir.path(), None).await.unwrap();
    let token = JoinToken::new(identity.fingerprint().unwrap());
    store.add_cluster_token("bench", &token.hash(), Duration::from_secs(600)).await.unwrap();
    let id = identity.server().unwrap();
    let cluster = begin(identity, store, dir.path()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(serve(stream));
        }
    });
    Far { id, target: JoinTarget { token, address: cluster.address().to_owned() }, service, _dir: dir }
}

async fn join_near(url: &str, far: &Far) -> (Arc<Cluster>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let id = ServerId::parse(&server_id(dir.path()).unwrap()).unwrap();
    let identity = isopod_peer::join(&far.target, &id).await.unwrap();
    let store = Store::connect(url, dir.path(), "near").await.unwrap();
    (begin(identity, store, dir.path()).await, dir)
}

async fn begin(identity: Identity, store: Store, dir: &std::path::Path) -> Arc<Cluster> {
    store.renew_lease(Duration::from_secs(3600), "bench").await.unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let settings = ClusterSettings { identity, state_dir: dir.to_owned(), listen, address: None, database: None };
    let placement = Box::new(ByLoad::new(store.clone()));
    let (cluster, listener) = Cluster::open(settings, store, placement, CancellationToken::new()).await.unwrap();
    tokio::spawn(Arc::clone(&cluster).run(listener, |stream, _| serve(stream).boxed()));
    cluster
}

async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let body = match request.uri().path() {
            "/large" => {
                let chunk = Bytes::from(vec![7; CHUNK]);
                let chunks = (0..LARGE / CHUNK).map(move |_| Ok::<_, Infallible>(chunk.clone()));
                Body::from_stream(futures::stream::iter(chunks))
            }
            _ => Body::from("ok"),
        };
        Ok::<_, Infallible>(Response::new(body))
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Knows nothing, so that every request goes over the hop.
struct Nowhere(ServerId);

#[async_trait::async_trait]
impl Here for Nowhere {
    async fn answer(&self, _: Request<Body>) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(Elsewhere::On { server: self.0.to_string() });
        response
    }

    fn has(&self, _: &Question) -> bool {
        false
    }

    fn unreachable(&self, server: String) -> Response<Body> {
        panic!("{server} is unreachable")
    }

    fn lost(&self, server: String) -> Response<Body> {
        panic!("{server} was lost")
    }
}

async fn ask_over_hop(cluster: &Cluster, far: &ServerId, path: &'static str) -> Response<Body> {
    let address = "127.0.0.1".parse().unwrap();
    let origin = Origin { address, tls: false, request_id: "bench".to_owned(), traceparent: None };
    let request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
    let question = Question::Build("bench".to_owned());
    cluster.answer(&Nowhere(far.clone()), Some(question), false, &origin, request).await
}

/// On a new connection, as the hop has a new stream.
async fn ask_directly(service: SocketAddr) -> Response<Body> {
    open(service, "/").await
}

async fn load_directly(service: SocketAddr) -> Response<Body> {
    open(service, "/large").await
}

async fn open(service: SocketAddr, path: &str) -> Response<Body> {
    let stream = TcpStream::connect(service).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
    sender.send_request(request).await.unwrap().map(Body::new)
}

async fn times<F: Future<Output = Response<Body>>>(ask: impl Fn() -> F) -> Vec<Duration> {
    let mut times = Vec::with_capacity(REQUESTS / ROUNDS);
    for number in 0..WARM_UP + REQUESTS / ROUNDS {
        let begun = Instant::now();
        let response = ask().await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
        if number >= WARM_UP {
            times.push(begun.elapsed());
        }
    }
    times
}

/// MiB per second.
async fn rate(response: Response<Body>) -> f64 {
    let begun = Instant::now();
    let (mut body, mut read) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    assert_eq!(read, LARGE);
    read as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}

struct Percentiles {
    p50: Duration,
    p99: Duration,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| times[times.len() * share / 100];
        Self { p50: at(50), p99: at(99) }
    }
}
