//! The way into a sandbox for the server itself: its guest and its interpreter, dialled through the node.

use std::io;
use std::sync::Arc;

use isopod_client::guest::Guest;
use isopod_client::interpreter::Interpreter;
use isopod_client::{ByteStream, Connector, Dial, DialFuture, Origin};
use isopod_wire::node::{Incarnation, NodeApi, Target};

use crate::lifecycle::{Fleet, Sandbox};

/// What runs inside one sandbox that runs.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    pub(crate) guest: Guest,
    pub(crate) interpreter: Interpreter,
}

impl Inside {
    /// None while the sandbox is paused or on its way out.
    pub(crate) fn of(fleet: &Fleet, sandbox: &Sandbox) -> Option<Self> {
        let view = sandbox.view();
        let life = view.life.as_ref()?;
        // What is printed inside belongs into the sandbox's log.
        life.output.expect();
        let way = |target| {
            let (node, incarnation) = (Arc::clone(&fleet.node), life.incarnation.clone());
            Connector::custom(NodeDial { node, incarnation, target })
        };
        let nowhere = "http://localhost".parse().expect("it is a URL");
        let mut guest = Guest::through_edge(way(Target::Guest), nowhere, sandbox.id());
        let mut interpreter = Interpreter::over(way(Target::Interpreter));
        if let Some(token) = &view.row.access_token {
            // Our tokens are hexadecimal digits, so a header always takes them.
            guest = guest.with_access_token(&token.0).ok()?;
            interpreter = interpreter.with_access_token(&token.0).ok()?;
        }
        Some(Self { guest, interpreter })
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
