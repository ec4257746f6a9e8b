//! Connections of MCP's tools to the API of the same process. They are real sockets, because the edge asks the kernel what
//! of a stream has arrived; nobody else can connect in between.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock, Weak};

use isopod_api::Peer;
use isopod_client::Connector;
use isopod_control::listener::Connections;
use isopod_guest_client::transport::{ByteStream, Dial, DialFuture, Origin};
use tokio::net::{TcpListener, TcpStream};

/// The way into this server, which opens when the server has its routes.
#[derive(Clone, Default)]
pub(crate) struct Inside(Arc<OnceLock<Weak<Connections>>>);

struct InsideDial {
    inside: Inside,
    peer: Peer,
}

impl Inside {
    pub(crate) fn open(&self, connections: &Arc<Connections>) {
        // There is one server, so this is the first time.
        let _ = self.0.set(Arc::downgrade(connections));
    }

    /// A connector whose requests count as those of `peer`.
    pub(crate) fn connector(&self, peer: Option<Peer>) -> Connector {
        let peer = peer.unwrap_or(Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), tls: false, is_forwarded: false });
        Connector::custom(InsideDial { inside: self.clone(), peer })
    }
}

impl Dial for InsideDial {
    fn dial(&self, _: &Origin) -> DialFuture {
        let (inside, peer) = (self.inside.clone(), self.peer);
        Box::pin(async move {
            let stopped = || io::Error::new(io::ErrorKind::NotConnected, "the server is stopping");
            let connections = inside.0.get().and_then(Weak::upgrade).ok_or_else(stopped)?;
            let (ours, theirs) = pair().await?;
            connections.start_inside(theirs, peer);
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }
}

/// Two ends of a connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let ours = TcpStream::connect(listener.local_addr()?).await?;
    let address = ours.local_addr()?;
    loop {
        let (theirs, peer) = listener.accept().await?;
        // Another program of this machine may have found the port.
        if peer == address {
            ours.set_nodelay(true)?;
            theirs.set_nodelay(true)?;
            return Ok((ours, theirs));
        }
    }
}
