//! Members and strangers over real TCP, with a real PostgreSQL.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt as _;
use http::Request;
use http_body_util::BodyExt as _;
use isopod_store::clock::Timestamp;
use isopod_store::testing::postgres::database_for;
use isopod_store::{Store, server_id};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, ClusterSettings, OpenError};
use crate::forward::ForwardError;
use crate::identity::Identity;
use crate::init::{InitError, init};
use crate::join::{JoinError, join};
use crate::origin::Origin;
use crate::placement::ByLoad;
use crate::server_id::ServerId;
use crate::stream::TunnelStream;
use crate::token::{JoinTarget, JoinToken};

/// A running member, whose every request is answered by `echo`.
struct Member {
    cluster: Arc<Cluster>,
    store: Store,
    identity: Identity,
    stop: CancellationToken,
    dir: tempfile::TempDir,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Member {
    async fn run(url: &str, dir: tempfile::TempDir, identity: Identity) -> Self {
        let store = Store::connect(url, dir.path(), "member").await.unwrap();
        store.renew_lease(Duration::from_secs(600), "test").await.unwrap();
        let stop = CancellationToken::new();
        let settings = settings(identity.clone(), dir.path());
        let placement = Box::new(ByLoad::new(store.clone()));
        let (cluster, listener) = Cluster::open(settings, store.clone(), placement, stop.clone()).await.unwrap();
        tokio::spawn(Arc::clone(&cluster).run(listener, |stream, origin| echo(stream, origin).boxed()));
        Self { cluster, store, identity, stop, dir }
    }

    fn id(&self) -> ServerId {
        self.identity.server().unwrap()
    }

    fn target(&self, token: JoinToken) -> JoinTarget {
        JoinTarget { token, address: self.cluster.address().to_owned() }
    }

    async fn token(&self, id: &str, lasts: Duration) -> JoinToken {
        let token = JoinToken::new(self.identity.fingerprint().unwrap());
        self.store.add_cluster_token(id, &token.hash(), lasts).await.unwrap();
        token
    }

    /// What the other one says to a request of ours.
    async fn ask(&self, other: &ServerId) -> Result<String, ForwardError> {
        self.cluster.members.refresh().await.unwrap();
        let request = Request::get("/x").header("host", "here").body(Body::empty()).unwrap();
        let (response, _) = self.cluster.forward(other, &origin(), request).await?;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }
}

fn settings(identity: Identity, state_dir: &Path) -> ClusterSettings {
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    ClusterSettings {
        identity,
        state_dir: state_dir.to_owned(),
        listen,
        address: None,
        database: Some("db".to_owned()),
    }
}

fn origin() -> Origin {
    Origin { address: "192.0.2.7".parse().unwrap(), tls: true, request_id: "id".to_owned(), traceparent: None }
}

/// Answers with the client's address and the head as it came.
async fn echo(mut stream: TunnelStream, origin: Origin) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let text = format!("{} {}", origin.address, String::from_utf8_lossy(&head));
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn first(url: &str) -> Member {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::connect(url, dir.path(), "first").await.unwrap();
    let identity = init(&store, dir.path(), None).await.unwrap();
    assert!(matches!(init(&store, dir.path(), None).await, Err(InitError::Member)));
    Member::run(url, dir, identity).await
}

async fn second(url: &str, first: &Member) -> Member {
    let dir = tempfile::tempdir().unwrap();
    let id = id_in(dir.path());
    let token = first.token("second", Duration::from_secs(60)).await;
    let identity = join(&first.target(token), &id).await.unwrap();
    assert_eq!(identity.database(), Some("db"), "the machine learns the database");
    Member::run(url, dir, identity).await
}

fn id_in(dir: &Path) -> ServerId {
    ServerId::parse(&server_id(dir).unwrap()).unwrap()
}

/// A database of its own for the test.
async fn database() -> (String, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (database_for(dir.path()).await, dir)
}

#[tokio::test]
async fn members_forward_to_each_other_and_tell_who_the_client_is() {
    let (url, _dir) = database().await;
    let first = first(&url).await;
    let second = second(&url, &first).await;
    for (from, to) in [(&first, &second), (&second, &first)] {
        let told = from.ask(&to.id()).await.unwrap();
        assert!(told.starts_with("192.0.2.7 GET /x HTTP/1.1\r\n"), "{told}");
    }
    let another = tempfile::tempdir().unwrap();
    let store = Store::connect(&url, another.path(), "another").await.unwrap();
    assert!(matches!(init(&store, another.path(), None).await, Err(InitError::Exists)));
    assert_eq!(Identity::read(another.path()).unwrap(), None, "nothing of it stays");
}

#[tokio::test]
async fn a_token_is_used_once_by_one_machine_before_its_end_and_with_its_own_cluster() {
    let (url, _dir) = database().await;
    let (other_url, _other_dir) = database().await;
    let (first, other) = (first(&url).await, first(&other_url).await);
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let (one, two) = (id_in(dirs[0].path()), id_in(dirs[1].path()));
    let refused = |joined| match joined {
        Err(JoinError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let good = first.token("good", Duration::from_secs(60)).await;
    join(&first.target(good.clone()), &one).await.unwrap();
    assert!(refused(join(&first.target(good), &two).await).contains("was used"));
    let expired = first.token("expired", Duration::ZERO).await;
    assert!(refused(join(&first.target(expired), &two).await).contains("has expired"));
    let revoked = first.token("revoked", Duration::from_secs(60)).await;
    assert!(first.store.revoke_cluster_token("revoked").await.unwrap());
    assert!(refused(join(&first.target(revoked), &two).await).contains("was revoked"));
    let unknown = JoinToken::new(first.identity.fingerprint().unwrap());
    assert!(refused(join(&first.target(unknown), &two).await).contains("never existed"));
    let taken = first.token("taken", Duration::from_secs(60)).await;
    assert!(refused(join(&first.target(taken), &one).await).contains("member already"), "with another key");
    let statuses: Vec<_> = first.store.list_cluster_tokens().await.unwrap();
    assert!(statuses.iter().any(|token| token.id == "taken" && token.used_by.is_none()), "it was not used up");
    // The secret is not shown to whoever listens at the address.
    let elsewhere = first.token("elsewhere", Duration::from_secs(60)).await;
    assert!(matches!(join(&other.target(elsewhere.clone()), &two).await, Err(JoinError::Tls { .. })));
    join(&first.target(elsewhere), &two).await.unwrap();
}

#[tokio::test]
async fn certificates_of_others_of_the_past_and_of_the_removed_are_refused() {
    let (url, _dir) = database().await;
    let first = first(&url).await;
    let second = second(&url, &first).await;
    assert!(first.ask(&second.id()).await.is_ok() && second.ask(&first.id()).await.is_ok());

    // Of another cluster, with the id of a member.
    let foreign = Identity::create(&second.id(), None).unwrap();
    assert!(!is_served(&first, &foreign).await);
    // Of this cluster's authority, with the id of a member, but another key: whoever has stolen the authority's key.
    let (authority, authority_key) = first.identity.authority_pem();
    let (authority, authority_key) = (authority.to_owned(), authority_key.to_owned());
    let key = crate::certificate::make_key().unwrap();
    let forged = Identity::of_member(&second.id(), key, authority, authority_key, None).unwrap();
    assert!(!is_served(&first, &forged).await);
    // Expired.
    let expired = second.identity.lasting_until(Timestamp::now().minus(Duration::from_secs(1))).unwrap();
    assert!(!is_served(&first, &expired).await);
    // It was nothing else.
    assert!(is_served(&first, &second.identity).await);

    assert!(first.store.remove_cluster_node(second.id().as_str()).await.unwrap());
    first.cluster.members.refresh().await.unwrap();
    assert!(!is_served(&first, &second.identity).await);
    assert!(matches!(first.ask(&second.id()).await, Err(ForwardError::NotSent(_))));
    let placement = Box::new(ByLoad::new(second.store.clone()));
    let again = settings(second.identity.clone(), second.dir.path());
    let opened = Cluster::open(again, second.store.clone(), placement, CancellationToken::new()).await;
    assert!(matches!(opened, Err(OpenError::NotMember)), "{opened:?}");
}

/// Whether a member serves a stream to whoever has this identity.
async fn is_served(member: &Member, identity: &Identity) -> bool {
    let tls = crate::tls::PeerTls::of(identity).unwrap();
    let stream = TcpStream::connect(member.cluster.address()).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from(member.id().certificate_name()).unwrap();
    // The other cluster's certificates are refused by this side too, so it doesn't look.
    let Ok(stream) = tokio_rustls::TlsConnector::from(tls.client).connect(name, stream).await else { return false };
    let Ok((sender, connection)) = h2::client::handshake(stream).await else { return false };
    tokio::spawn(connection);
    let Ok(mut sender) = sender.ready().await else { return false };
    let mut request = Request::post(crate::pool::TUNNEL).body(()).unwrap();
    origin().write(request.headers_mut());
    let Ok((response, send)) = sender.send_request(request, false) else { return false };
    let mut stream = TunnelStream::opened(send, response);
    if stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.is_err() {
        return false;
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.is_ok() && answer.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn whoever_has_no_certificate_or_speaks_no_tls_gets_nothing() {
    let (url, _dir) = database().await;
    let first = first(&url).await;
    let mut plain = TcpStream::connect(first.cluster.address()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
    // A machine that joins may only join.
    let fingerprint = first.identity.fingerprint().unwrap();
    let mut config = crate::tls::joining_config(&fingerprint).unwrap();
    config.alpn_protocols = vec![crate::tls::PEER_PROTOCOL.to_vec()];
    let stream = TcpStream::connect(first.cluster.address()).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("node.isopod.internal").unwrap();
    let connected = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    // In TLS 1.3, the client is done before the server has refused it.
    if let Ok(mut stream) = connected {
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        assert!(read.is_err() && answer.is_empty(), "{read:?} {answer:?}");
    }
}

#[test]
fn a_certificate_is_renewed_in_time_with_the_same_key_and_written_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::create(&ServerId::parse("one").unwrap(), None).unwrap();
    assert!(identity.renewed_if_needed().unwrap().is_none());
    let short = identity.lasting_until(Timestamp::now().plus(Duration::from_secs(24 * 3600))).unwrap();
    let renewed = short.renewed_if_needed().unwrap().unwrap();
    assert!(renewed.until() > short.until());
    assert_eq!(renewed.key_hash().unwrap(), identity.key_hash().unwrap());
    renewed.write(dir.path()).unwrap();
    assert_eq!(Identity::read(dir.path()).unwrap(), Some(renewed));
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("cluster"), mode("cluster/identity.json")), (0o700, 0o600));
    std::fs::write(dir.path().join("cluster/identity.json"), "{}").unwrap();
    assert!(Identity::read(dir.path()).is_err());
}
