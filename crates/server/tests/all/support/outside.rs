//! External HTTP and HTTPS servers that the server under test calls.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Serves HTTP/1.1 on 127.0.0.1 until the test ends.
pub async fn serve_http<S>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<Full<Bytes>>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::error::Error + Send + Sync,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    address
}

/// Serves HTTP/1.1 on 127.0.0.1 with a self-signed certificate, until the test ends. Returns the address and the
/// certificate in PEM.
pub async fn serve_tls<S>(service: S) -> (SocketAddr, Vec<u8>)
where
    S: Service<Request<Incoming>, Response = Response<Full<Bytes>>, Error = hyper::Error> + Clone + Send + 'static,
    S::Future: Send,
{
    let (acceptor, certificate) = certified_acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    (address, certificate)
}

fn certified_acceptor() -> (TlsAcceptor, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], made.signing_key.serialize_der().try_into().unwrap())
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem().into_bytes())
}
