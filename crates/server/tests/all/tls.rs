//! The listener with TLS: who gets through, who gets an error, and that nobody can block it.

use crate::support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_control::TlsIdentity;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use support::Server;

const HEAD_TIMEOUT: Duration = Duration::from_millis(300);

async fn start() -> (Server, CertificateDer<'static>) {
    start_with_plain(false).await
}

async fn start_with_plain(beside: bool) -> (Server, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let server = Server::start_with(move |config| {
        config.control.tls = Some(TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap());
        config.control.plain_beside_tls = beside;
        config.control.connections.head_timeout = HEAD_TIMEOUT;
    })
    .await;
    (server, made.cert.der().clone())
}

async fn connect(
    server: &Server,
    trusted: &CertificateDer<'static>,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(server.address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

#[tokio::test]
async fn both_versions_of_http_are_offered_and_others_are_refused() {
    let (server, certificate) = start().await;
    let negotiated = |stream: &TlsStream<TcpStream>| stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let both = connect(&server, &certificate, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(negotiated(&both).unwrap(), b"h2");
    assert!(connect(&server, &certificate, &["smtp"]).await.is_err());
    let mut plain = connect(&server, &certificate, &[]).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    // The connection may end without a TLS close notification.
    let _ = plain.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn plain_http_is_refused_in_words_however_much_of_it_comes() {
    let (server, _) = start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: secret\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[b'x'; 100_000]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n") && answer.contains("only accepts https"), "{answer}");
    assert!(!answer.contains("secret"));
}

#[tokio::test]
async fn who_never_finishes_the_handshake_is_let_go() {
    let (server, certificate) = start().await;
    for beginning in [&b""[..], &[0x16, 3, 1, 1, 0, 1], &[0x16; 400]] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let started = Instant::now();
        let mut rest = Vec::new();
        // Closed or reset: both show that the server did not wait.
        let ended = tokio::time::timeout(HEAD_TIMEOUT * 10, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{beginning:?} held the connection for {:?}", started.elapsed());
    }
    assert!(connect(&server, &certificate, &["h2"]).await.is_ok());
}

#[tokio::test]
async fn a_handshake_under_way_does_not_hold_up_the_end() {
    let (mut server, _) = start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[0x16, 3, 1]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), server.stop()).await.unwrap();
}

#[tokio::test]
async fn one_port_speaks_both_where_that_is_wanted_and_links_have_the_scheme_of_their_request() {
    let (server, certificate) = start_with_plain(true).await;
    assert_eq!(server.client.get("/health").await.status, 200);
    let template = server.client.post("/v3/templates", serde_json::json!({ "name": "both" })).await.json;
    let path = format!("/templates/{}/files/{}", template["templateID"].as_str().unwrap(), "a".repeat(64));
    let plain = server.client.get(&path).await.json;
    assert!(plain["url"].as_str().unwrap().starts_with("http://"), "{plain}");
    let mut stream = connect(&server, &certificate, &[]).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {}\r\nconnection: close\r\n\r\n",
        support::server::KEY
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.contains(r#""url":"https://localhost/"#), "{answer}");
}

#[tokio::test]
async fn who_says_nothing_to_a_port_of_both_does_not_hold_up_the_end() {
    let (mut server, _) = start_with_plain(true).await;
    let _silent = TcpStream::connect(server.address).await.unwrap();
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(&[0x16, 3, 1]).await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(HEAD_TIMEOUT * 10, half.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "half a handshake held its connection");
    tokio::time::timeout(Duration::from_secs(5), server.stop()).await.unwrap();
}
