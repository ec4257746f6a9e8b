//! Opens byte streams to an origin. HTTP does not need to know the transport below it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
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
    Unix(Arc<UnixTarget>),
    Custom(Arc<dyn Dial>),
}

struct UnixTarget {
    path: PathBuf,
    /// What the path leads through. Once it is closed, its number may mean another file.
    _open: Option<OwnedFd>,
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
        Self(Kind::Unix(Arc::new(UnixTarget { path: path.into(), _open: None })))
    }

    /// The Unix socket that this descriptor was opened for with `O_PATH`, even if its path is gone or too long for a socket
    /// address.
    pub fn open_unix(socket: OwnedFd) -> Self {
        Self::unix_through(socket, Path::new(""))
    }

    /// The Unix socket with this name in an open directory, whose path may be too long for a socket address.
    pub fn unix_in(directory: OwnedFd, name: &str) -> Self {
        Self::unix_through(directory, Path::new(name))
    }

    fn unix_through(open: OwnedFd, rest: &Path) -> Self {
        let mut path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        if rest != Path::new("") {
            path.push(rest);
        }
        Self(Kind::Unix(Arc::new(UnixTarget { path, _open: Some(open) })))
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
            Kind::Unix(target) => Ok(Box::new(UnixStream::connect(&target.path).await?)),
            Kind::Custom(dial) => dial.dial(origin).await,
        }
    }

    /// The name of the other side in errors.
    pub(crate) fn target(&self, origin: &Origin) -> String {
        match &self.0 {
            Kind::Unix(target) => target.path.display().to_string(),
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
            Kind::Unix(target) => write!(f, "Connector::unix({})", target.path.display()),
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

    /// A number that is free again means whatever is opened next, such as another guest.
    #[tokio::test]
    async fn a_client_keeps_open_what_leads_to_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(directory.path().join("guest.sock")).unwrap();
        let opened = || OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let socket = rustix::fs::open(
            directory.path().join("guest.sock"),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let origin = Origin { tls: false, host: "localhost".to_owned(), port: 80 };
        for connector in [Connector::unix_in(opened(), "guest.sock"), Connector::open_unix(socket.unwrap())] {
            let _others: Vec<_> = (0..8).map(|_| opened()).collect();
            let copy = connector.clone();
            drop(connector);
            copy.connect(&origin).await.unwrap();
            listener.accept().await.unwrap();
        }
    }
}
