//! https: who is believed to be the server.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

use std::sync::Arc;

use isopod_client::sandbox::{ApiError, Client, ClientConfig};
use isopod_client::{Connector, TransportError, Trust};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Responds to every request with "nothing there to end". Returns its port and its self-signed certificate.
async fn start_server() -> (u16, String) {
    let names = ["localhost", "isopod.localhost", "127.0.0.1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], made.signing_key.serialize_der().try_into().unwrap())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
                let _ = stream.shutdown().await;
            }
        }
    });
    (port, made.cert.pem())
}

async fn kill(host: &str, port: u16, connector: Connector) -> Result<bool, ApiError> {
    let api_url = format!("https://{host}:{port}");
    let config = ClientConfig { api_url, api_key: "e2b_key".into(), ..ClientConfig::default() };
    Client::with_connector(config, connector).unwrap().kill(&"i1".parse().unwrap()).await
}

fn reason(result: Result<bool, ApiError>) -> String {
    match result {
        Err(ApiError::Transport(TransportError::Connect { source, .. })) => source.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn strangers_other_names_and_plain_connectors_are_refused() {
    let (port, certificate) = start_server().await;
    let trusting = || Connector::tls(Trust::nobody().and_pem(certificate.as_bytes()).unwrap());
    assert!(reason(kill("localhost", port, Connector::tcp()).await).contains("TLS"));
    assert!(reason(kill("localhost", port, Connector::tls(Trust::system())).await).contains("certificate"));
    assert!(reason(kill("localhost", port, Connector::tls(Trust::nobody())).await).contains("certificate"));
    assert!(reason(kill("other.localhost", port, trusting()).await).contains("certificate"));
}

#[tokio::test]
async fn a_server_is_found_under_every_name_that_its_certificate_has() {
    let (port, certificate) = start_server().await;
    for host in ["localhost", "isopod.localhost", "127.0.0.1"] {
        let trust = Trust::system().and_pem(certificate.as_bytes()).unwrap();
        assert!(!kill(host, port, Connector::tls(trust)).await.unwrap(), "{host}");
    }
}
