//! The server's own connection into a running sandbox. It goes directly through the node, without the edge.

use std::io;
use std::sync::Arc;

use isopod_guest_client::{ByteStream, Connector, Dial, DialFuture, Guest, Interpreter, Origin};
use isopod_wire::node::{DialError, Incarnation, NodeApi, Secret, Target};

use super::handle::{Life, View};

/// Clients for the guest and the interpreter of one life of a sandbox. Clones share their connections, which end with
/// that life.
#[derive(Clone, Debug)]
pub struct GuestConnection {
    pub guest: Guest,
    pub interpreter: Interpreter,
}

impl View {
    /// Returns `None` while the sandbox is paused or ending.
    pub fn guest_connection(&self, node: &Arc<dyn NodeApi>) -> Option<GuestConnection> {
        Some(self.life.as_ref()?.guest_connection(node, self.row.access_token.as_ref()))
    }
}

impl Life {
    /// Connects with this token, which stays the same during a life.
    pub fn guest_connection(&self, node: &Arc<dyn NodeApi>, token: Option<&Secret>) -> GuestConnection {
        // Calls may cause output, which belongs in the sandbox's log.
        self.output.expect();
        self.guest_connection.get_or_init(|| open(node, &self.incarnation, token)).clone()
    }

    /// Whether a program listens there.
    ///
    /// # Errors
    /// If the sandbox cannot be reached at all.
    pub async fn is_listening(&self, node: &Arc<dyn NodeApi>, target: Target) -> Result<bool, DialError> {
        match node.dial(&self.incarnation, target).await {
            Ok(_) => Ok(true),
            Err(DialError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The largest reply of one call. The largest that the server requests is a listing of a run's files.
const MAX_REPLY: usize = 32 << 20;
/// The maximum size of one event of running code, such as a large picture.
const MAX_EVENT: usize = 64 << 20;

/// The programs inside are not trusted, so their limits are lower than those of the client library.
fn open(node: &Arc<dyn NodeApi>, incarnation: &Incarnation, token: Option<&Secret>) -> GuestConnection {
    const HEX: &str = "the server's tokens are hexadecimal";
    let way = |target| Connector::custom(NodeDial { node: Arc::clone(node), incarnation: incarnation.clone(), target });
    let (guest, interpreter) = (
        Guest::over(way(Target::Guest)).with_reply_limit(MAX_REPLY),
        Interpreter::over(way(Target::Interpreter)).with_event_limit(MAX_EVENT),
    );
    match token {
        Some(Secret(token)) => GuestConnection {
            guest: guest.with_access_token(token).expect(HEX),
            interpreter: interpreter.with_access_token(token).expect(HEX),
        },
        None => GuestConnection { guest, interpreter },
    }
}

/// Connects to one target in one life of a sandbox, whatever address is requested.
struct NodeDial {
    node: Arc<dyn NodeApi>,
    incarnation: Incarnation,
    target: Target,
}

impl Dial for NodeDial {
    fn dial(&self, _: &Origin) -> DialFuture {
        let (node, incarnation, target) = (Arc::clone(&self.node), self.incarnation.clone(), self.target);
        Box::pin(async move {
            let stream = node.dial(&incarnation, target).await.map_err(io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
