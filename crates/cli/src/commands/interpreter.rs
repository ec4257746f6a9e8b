//! The code interpreter of a sandbox on this machine, without a server in between.

use std::io;
use std::sync::{Arc, Weak};

use isopod_client::interpreter::Interpreter;
use isopod_guest_client::transport::{ByteStream, Connector, Dial, DialFuture, Origin};
use isopod_node::Node;
use isopod_wire::node::{Incarnation, NodeApi, Target};

/// Speaks with the interpreter of a sandbox of this node.
pub(super) fn interpreter_of(node: &Arc<Node>, incarnation: &Incarnation) -> Interpreter {
    Interpreter::over(Connector::custom(IntoSandbox { node: Arc::downgrade(node), incarnation: incarnation.clone() }))
}

struct IntoSandbox {
    /// Kept connections must not keep the node.
    node: Weak<Node>,
    incarnation: Incarnation,
}

impl Dial for IntoSandbox {
    fn dial(&self, _: &Origin) -> DialFuture {
        let (node, incarnation) = (self.node.clone(), self.incarnation.clone());
        Box::pin(async move {
            let node = node.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            let stream = node.dial(&incarnation, Target::Interpreter).await.map_err(io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
