//! Opens byte streams to an origin. HTTP does not need to know the transport below it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::tls::{Tls, Trust};

/// The server that a base URL points to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the URL starts with `https`.
    pub tls: bool,
    /// A name or an address, without the brackets of an IPv6 address.
    pub host: String,
    /// The port, even if the URL has none.
    pub port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The future of [`Dial::dial`].
pub type DialFuture = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// Opens connections. Implement it for a proxy, or for a server in the same process.
pub trait Dial: Send + Sync {
    /// Opens one connection to the origin.
    fn dial(&self, origin: &Origin) -> DialFuture;
}

/// How a client connects to its server.
#[derive(Clone)]
pub struct Connector(Kind);

#[derive(Clone)]
enum Kind {
    Tcp,
    Tls(Arc<Tls>),
    Unix(Arc<PathBuf>),
    Custom(Arc<dyn Dial>),
}

impl Connector {
    /// Plain TCP. Refuses `https`, which needs a connector with TLS.
    pub fn tcp() -> Self {
        Self(Kind::Tcp)
    }

    /// TCP, with TLS if the URL starts with `https`.
    pub fn tls(trust: Trust) -> Self {
        Self(Kind::Tls(Arc::new(Tls::new(trust))))
    }

    /// The Unix socket at this path, whatever the origin.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self(Kind::Unix(Arc::new(path.into())))
    }

    /// A custom transport.
    pub fn custom(dial: impl Dial + 'static) -> Self {
        Self(Kind::Custom(Arc::new(dial)))
    }

    pub(crate) async fn connect(&self, origin: &Origin) -> io::Result<Box<dyn ByteStream>> {
        match &self.0 {
            Kind::Tcp if origin.tls => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "https needs a connector with TLS, but this one only supports plain TCP",
            )),
            Kind::Tcp => Ok(Box::new(dial_tcp(origin).await?)),
            Kind::Tls(_) if !origin.tls => Ok(Box::new(dial_tcp(origin).await?)),
            Kind::Tls(tls) => Ok(Box::new(tls.wrap(dial_tcp(origin).await?, &origin.host).await?)),
            Kind::Unix(path) => Ok(Box::new(UnixStream::connect(path.as_path()).await?)),
            Kind::Custom(dial) => dial.dial(origin).await,
        }
    }

    /// The name of the other side in errors.
    pub(crate) fn target(&self, origin: &Origin) -> String {
        match &self.0 {
            Kind::Unix(path) => path.display().to_string(),
            Kind::Tcp | Kind::Tls(_) | Kind::Custom(_) => origin.to_string(),
        }
    }

    /// Whether a lost peer is always noticed. The kernel reports it for a Unix socket, but not for other transports.
    pub(crate) fn notices_a_lost_peer(&self) -> bool {
        matches!(self.0, Kind::Unix(_))
    }
}

async fn dial_tcp(origin: &Origin) -> io::Result<TcpStream> {
    let stream = match is_loopback_name(&origin.host) {
        true => {
            let both: [SocketAddr; 2] =
                [(Ipv4Addr::LOCALHOST, origin.port).into(), (Ipv6Addr::LOCALHOST, origin.port).into()];
            TcpStream::connect(both.as_slice()).await?
        }
        false => TcpStream::connect((origin.host.as_str(), origin.port)).await?,
    };
    // Without this, small frames wait up to 40 ms for the acknowledgement of earlier ones.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// `localhost` and all names below it are this machine (RFC 6761), but many resolvers know only the first.
fn is_loopback_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Tcp => f.write_str("Connector::tcp"),
            Kind::Tls(_) => f.write_str("Connector::tls"),
            Kind::Unix(path) => write!(f, "Connector::unix({})", path.display()),
            Kind::Custom(_) => f.write_str("Connector::custom"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_below_localhost_are_this_machine() {
        for name in ["localhost", "isopod.localhost", "80-i1.isopod.LOCALHOST", "localhost."] {
            assert!(is_loopback_name(name), "{name}");
        }
        for name in ["notlocalhost", "localhost.example", "127.0.0.1", ""] {
            assert!(!is_loopback_name(name), "{name}");
        }
    }
}
