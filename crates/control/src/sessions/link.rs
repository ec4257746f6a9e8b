//! The way into a sandbox: its guest and its interpreter, without the server's own edge in between.

use std::io;
use std::sync::Arc;

use isopod_client::guest::Guest;
use isopod_client::{ByteStream, Connector, Dial, DialFuture, Interpreter, Origin};
use isopod_wire::node::{Incarnation, NodeApi, Target};

use crate::lifecycle::View;

/// Both ends of one life of a sandbox. Connections are kept for the next call.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) incarnation: Incarnation,
    pub(super) guest: Guest,
    pub(super) interpreter: Interpreter,
}

impl Link {
    /// None when the sandbox does not run.
    pub(super) fn to(node: &Arc<dyn NodeApi>, view: &View) -> Option<Self> {
        let incarnation = view.life.as_ref()?.incarnation.clone();
        let way =
            |target| Connector::custom(NodeDial { node: Arc::clone(node), incarnation: incarnation.clone(), target });
        let (mut guest, mut interpreter) =
            (Guest::over(way(Target::Guest)), Interpreter::over(way(Target::Interpreter)));
        if let Some(token) = &view.row.access_token {
            // Our tokens are hexadecimal digits.
            guest = guest.with_access_token(&token.0).ok()?;
            interpreter = interpreter.with_access_token(&token.0).ok()?;
        }
        Some(Self { incarnation, guest, interpreter })
    }
}

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
