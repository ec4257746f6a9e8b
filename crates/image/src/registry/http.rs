//! One request over a connection of its own: TCP, TLS where the address says so, HTTP/1.1.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A registry that does not take the call by then is not there.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const REPLY_PATIENCE: Duration = Duration::from_secs(60);

/// Opens connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialer {
    /// Whether addresses of this machine may be called.
    may_be_local: bool,
}

/// Tells the refusal of an address of this machine from other errors.
#[derive(Debug, thiserror::Error)]
#[error("the address is this machine's own")]
struct Local;

pub(super) fn is_local(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Local>())
}

impl Dialer {
    pub(super) fn new(may_be_local: bool) -> Self {
        Self { may_be_local }
    }

    /// Sends a GET and waits for the head of the reply.
    pub(super) async fn get(&self, uri: &Uri, headers: HeaderMap) -> io::Result<Response<Incoming>> {
        self.send(Method::GET, uri, headers, Bytes::new()).await
    }

    /// Sends a request and waits for the head of the reply.
    pub(super) async fn send(
        &self,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> io::Result<Response<Incoming>> {
        let host = uri.host().ok_or_else(|| invalid("an address without a host"))?;
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let connecting = async {
            let stream = self.connect(host, port).await?;
            if is_tls {
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|_| invalid("a name that no certificate can have"))?;
                let stream = tls().connect(name, stream).await?;
                return Ok::<Box<dyn Stream>, io::Error>(Box::new(stream));
            }
            Ok(Box::new(stream) as Box<dyn Stream>)
        };
        let stream = within(CONNECT_PATIENCE, connecting).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::builder().method(method).uri(path).body(Full::new(body));
        let mut request = request.map_err(io::Error::other)?;
        *request.headers_mut() = headers;
        let authority = uri.authority().map_or(host, |authority| authority.as_str());
        let authority = HeaderValue::try_from(authority).map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, authority);
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("isopod"));
        within(REPLY_PATIENCE, async { sender.send_request(request).await.map_err(io::Error::other) }).await
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> =
            tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await?.collect();
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            // The address that is called is the one that was looked at: a name cannot change its mind in between.
            if !self.may_be_local && is_own(address.ip()) {
                last = io::Error::new(io::ErrorKind::PermissionDenied, Local);
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Loopback, link-local (where clouds keep their secrets) and no address at all.
fn is_own(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local(),
    }
}

fn tls() -> TlsConnector {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        // Machines keep odd certificates in their stores; those count as not trusted.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    });
    TlsConnector::from(Arc::clone(config))
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", limit.as_secs()))),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_known_in_every_spelling() {
        for own in ["127.0.0.1", "127.9.9.9", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fe80::1", "::"]
        {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        for other in ["10.0.0.1", "8.8.8.8", "2001:db8::1"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
    }
}
