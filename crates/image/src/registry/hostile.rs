//! Hostile registries and web servers: they lead to internal addresses, send without end, or stop sending.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use isopod_outbound::Allowed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Longer than any timeout.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// What the server does after the head of its response.
#[derive(Clone, Debug)]
enum Then {
    Close,
    /// Sends this as fast as it is read.
    Endless(Vec<u8>),
    /// Sends this at intervals.
    Drip(Vec<u8>, Duration),
    Silence,
}

type Answer = (String, Then);

/// A server on loopback that counts the connections that were opened and closed.
struct Peer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
}

impl Peer {
    async fn start(answer: impl Fn(&str) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Self { address: listener.local_addr().unwrap(), connections: Arc::default(), left: Arc::default() };
        let (connections, left) = (Arc::clone(&peer.connections), Arc::clone(&peer.left));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let mut head = [0; 4096];
                let length = stream.read(&mut head).await.unwrap();
                let (text, then) = answer(&String::from_utf8_lossy(&head[..length]));
                let left = Arc::clone(&left);
                tokio::spawn(async move {
                    let _ = go_on(stream, text, then).await;
                    left.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        peer
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits until all connections are closed.
    async fn is_left_alone(&self) {
        while self.left.load(Ordering::SeqCst) < self.connections() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The registry as users name it: by its address, without TLS.
    fn place(&self) -> Place {
        let reference = format!("{}/team/app", self.address).parse().unwrap();
        Place { reference, plain: true, is_named: false }
    }

    /// The operator allows this server and nothing else on this machine.
    fn policy(&self) -> Policy {
        Policy::new(vec![Allowed::host("127.0.0.1", self.address.port())])
    }

    async fn pull(&self, store: &Store) -> PullError {
        let (place, policy) = (self.place(), self.policy());
        let pulling = pull_from(store, &place, None, &policy, &|_| {});
        tokio::time::timeout(FOR_EVER, pulling).await.expect("the pull must give up in time").unwrap_err()
    }

    async fn fetch(&self, store: &Store, most: u64) -> FetchError {
        let settings = RegistrySettings { outbound: self.policy(), ..RegistrySettings::default() };
        fetch(store, &format!("http://{}/file", self.address), None, most, &settings).await.unwrap_err()
    }
}

async fn go_on(mut stream: TcpStream, text: String, then: Then) -> std::io::Result<()> {
    stream.write_all(text.as_bytes()).await?;
    match then {
        Then::Close => return Ok(()),
        Then::Endless(piece) => loop {
            stream.write_all(&piece).await?;
        },
        Then::Drip(piece, pause) => loop {
            tokio::time::sleep(pause).await;
            stream.write_all(&piece).await?;
        },
        Then::Silence => {}
    }
    stream.read_to_end(&mut Vec::new()).await.map(|_| ())
}

fn whole(status: &str, fields: &str, body: &str) -> Answer {
    let length = body.len();
    (format!("HTTP/1.1 {status}\r\n{fields}content-length: {length}\r\nconnection: close\r\n\r\n{body}"), Then::Close)
}

/// An image that consists of one blob of this size.
fn manifest(size: u64) -> Answer {
    let part = serde_json::json!({ "digest": Digest::of(b"never sent"), "size": size });
    whole("200 OK", "", &serde_json::json!({ "schemaVersion": 2, "config": part, "layers": [] }).to_string())
}

fn chunked(then: Then) -> Answer {
    ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(), then)
}

fn a_chunk() -> Vec<u8> {
    [b"10000\r\n".as_slice(), &[b'x'; 1 << 16], b"\r\n"].concat()
}

fn a_byte() -> Vec<u8> {
    b"1\r\nx\r\n".to_vec()
}

fn empty_store() -> (tempfile::TempDir, Store) {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::open(scratch.path()).unwrap();
    (scratch, store)
}

/// An internal server that must not be contacted.
async fn secret() -> Peer {
    Peer::start(|_| whole("200 OK", "", r#"{"token":"secret"}"#)).await
}

#[tokio::test]
async fn a_registry_that_sends_its_callers_to_an_internal_address_for_a_token_is_refused() {
    let (_scratch, store) = empty_store();
    let secret = secret().await;
    let realm = format!("http://{}/token", secret.address);
    let registry = Peer::start(move |_| {
        whole("401 No", &format!("www-authenticate: Bearer realm=\"{realm}\",service=\"r\"\r\n"), "")
    })
    .await;
    let refused = registry.pull(&store).await;
    assert!(matches!(refused, PullError::Internal(_)), "{refused}");
    assert_eq!((registry.connections(), secret.connections()), (1, 0));
    // A mirror may be at any address, but the addresses that it names may not.
    let mut named = registry.place();
    named.is_named = true;
    let refused = pull_from(&store, &named, None, &Policy::default(), &|_| {}).await.unwrap_err();
    assert!(matches!(refused, PullError::Internal(_)), "{refused}");
    assert_eq!((registry.connections(), secret.connections()), (2, 0));
}

#[tokio::test]
async fn a_registry_that_sends_its_callers_to_an_internal_address_for_a_blob_is_refused() {
    let (_scratch, store) = empty_store();
    let secret = secret().await;
    let location = format!("location: http://{}/blob\r\n", secret.address);
    let registry = Peer::start(move |head| match head.contains("/manifests/") {
        true => manifest(5),
        false => whole("307 Elsewhere", &location, ""),
    })
    .await;
    let refused = registry.pull(&store).await;
    assert!(matches!(refused, PullError::Internal(_)), "{refused}");
    assert_eq!((registry.connections(), secret.connections()), (2, 0));
}

#[tokio::test]
async fn a_blob_without_end_is_cut_where_the_manifest_says_it_ends() {
    let (_scratch, store) = empty_store();
    let registry = Peer::start(|head| match head.contains("/manifests/") {
        true => manifest(1 << 20),
        false => chunked(Then::Endless(a_chunk())),
    })
    .await;
    let refused = registry.pull(&store).await;
    assert!(matches!(refused, PullError::Answer { .. }), "{refused}");
    registry.is_left_alone().await;
    let kept = std::fs::metadata(store.partial(&Digest::of(b"never sent"))).unwrap().len();
    assert!(kept <= 1 << 20, "{kept}");
}

#[tokio::test]
async fn a_manifest_without_end_is_cut() {
    let (_scratch, store) = empty_store();
    let registry = Peer::start(|_| chunked(Then::Endless(a_chunk()))).await;
    let refused = registry.pull(&store).await;
    assert!(matches!(refused, PullError::Unreachable { .. }), "{refused}");
    registry.is_left_alone().await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_stops_sending_is_given_up() {
    let (_scratch, store) = empty_store();
    let silent_manifest = Peer::start(|_| chunked(Then::Silence)).await;
    let dripping_manifest = Peer::start(|_| chunked(Then::Drip(a_byte(), Duration::from_secs(50)))).await;
    let silent_blob = Peer::start(|head| match head.contains("/manifests/") {
        true => manifest(5),
        false => chunked(Then::Silence),
    })
    .await;
    for registry in [silent_manifest, dripping_manifest, silent_blob] {
        let refused = registry.pull(&store).await;
        assert!(matches!(refused, PullError::Unreachable { .. }), "{refused}");
        registry.is_left_alone().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_never_comes_whole_is_given_up() {
    for then in [Then::Silence, Then::Drip(a_byte(), Duration::from_secs(50)), Then::Endless(a_chunk())] {
        let (_scratch, store) = empty_store();
        let registry = Peer::start(move |head| match head.starts_with("GET /token") {
            true => chunked(then.clone()),
            false => {
                let host = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
                whole("401 No", &format!("www-authenticate: Bearer realm=\"http://{host}/token\"\r\n"), "")
            }
        })
        .await;
        let refused = registry.pull(&store).await;
        assert!(matches!(refused, PullError::Unreachable { .. }), "{refused}");
        assert_eq!(registry.connections(), 2);
        registry.is_left_alone().await;
    }
}

/// A server that keeps sending a little may have a slow connection, so it gets the whole time of the build.
#[tokio::test(start_paused = true)]
async fn a_blob_or_file_that_drips_has_the_time_of_its_caller() {
    let (_scratch, store) = empty_store();
    let drip = || chunked(Then::Drip(a_byte(), Duration::from_secs(50)));
    let registry = Peer::start(move |head| match head.contains("/manifests/") {
        true => manifest(1 << 20),
        false => drip(),
    })
    .await;
    let build = Duration::from_secs(3600);
    assert!(tokio::time::timeout(build, registry.pull(&store)).await.is_err());
    registry.is_left_alone().await;
    let web = Peer::start(move |_| drip()).await;
    assert!(tokio::time::timeout(build, web.fetch(&store, 1 << 20)).await.is_err());
    web.is_left_alone().await;
}

#[tokio::test]
async fn a_file_from_the_web_without_end_is_cut_and_leaves_nothing() {
    let (scratch, store) = empty_store();
    let web = Peer::start(|_| chunked(Then::Endless(a_chunk()))).await;
    let refused = web.fetch(&store, 1 << 20).await;
    assert!(matches!(refused, FetchError::TooLarge(_)), "{refused}");
    web.is_left_alone().await;
    assert_eq!(std::fs::read_dir(scratch.path().join("partial")).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_file_from_the_web_that_stops_is_given_up_and_leaves_nothing() {
    let (scratch, store) = empty_store();
    let web = Peer::start(|_| chunked(Then::Silence)).await;
    let refused = web.fetch(&store, 1 << 20).await;
    assert!(matches!(refused, FetchError::Unreachable { .. }), "{refused}");
    web.is_left_alone().await;
    assert_eq!(std::fs::read_dir(scratch.path().join("partial")).unwrap().count(), 0);
}
