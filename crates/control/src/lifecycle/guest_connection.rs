//! The way from this process into a running sandbox, for work that the server itself does inside: straight through the
//! node, without the edge.

use std::io;
use std::sync::Arc;

use isopod_guest_client::{ByteStream, Connector, Dial, DialFuture, Guest, Interpreter, Origin};
use isopod_wire::node::{Incarnation, NodeApi, Secret, Target};

use super::handle::{Life, View};

/// What answers inside one life of a sandbox. Clones share their connections, which end with that life.
#[derive(Clone, Debug)]
pub struct GuestConnection {
    pub guest: Guest,
    pub interpreter: Interpreter,
}

impl View {
    /// None while the sandbox is paused or on its way out.
    pub fn guest_connection(&self, node: &Arc<dyn NodeApi>) -> Option<GuestConnection> {
        Some(self.life.as_ref()?.guest_connection(node, self.row.access_token.as_ref()))
    }
}

impl Life {
    /// Opens with this token, which is the same for a whole life.
    pub fn guest_connection(&self, node: &Arc<dyn NodeApi>, token: Option<&Secret>) -> GuestConnection {
        // What is printed inside belongs into the sandbox's log.
        self.output.expect();
        self.guest_connection.get_or_init(|| open(node, &self.incarnation, token)).clone()
    }
}

/// The largest reply of one call. A listing of a run's files is the largest that the server asks for.
const MAX_REPLY: usize = 32 << 20;
/// What one event of running code may take in memory: a large picture.
const MAX_EVENT: usize = 64 << 20;

/// What answers inside is not trusted, so it is held to less than the client library allows.
fn open(node: &Arc<dyn NodeApi>, incarnation: &Incarnation, token: Option<&Secret>) -> GuestConnection {
    const HEX: &str = "our own tokens are hexadecimal";
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

/// Dials one thing in one life of one sandbox, whatever address is asked for.
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
