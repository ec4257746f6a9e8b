//! The way from this process to a running sandbox's guest, for work that the server itself does inside.

use std::io;
use std::sync::Arc;

use isopod_client::{ByteStream, Connector, Dial, DialFuture, Guest, Origin};
use isopod_wire::node::{Incarnation, NodeApi, Secret, Target};

use super::handle::Life;

impl Life {
    /// Its guest, which opens with this token. Clones share their connections, which end with the life.
    pub(crate) fn guest(&self, node: &Arc<dyn NodeApi>, token: Option<&Secret>) -> Guest {
        self.guest.get_or_init(|| open(node, &self.incarnation, token)).clone()
    }
}

fn open(node: &Arc<dyn NodeApi>, incarnation: &Incarnation, token: Option<&Secret>) -> Guest {
    let dial = GuestDial { node: Arc::clone(node), incarnation: incarnation.clone() };
    let guest = Guest::over(Connector::custom(dial));
    match token {
        Some(token) => guest.with_access_token(&token.0).expect("our own tokens are hexadecimal"),
        None => guest,
    }
}

struct GuestDial {
    node: Arc<dyn NodeApi>,
    incarnation: Incarnation,
}

impl Dial for GuestDial {
    fn dial(&self, _: &Origin) -> DialFuture {
        let (node, incarnation) = (Arc::clone(&self.node), self.incarnation.clone());
        Box::pin(async move {
            let stream = node.dial(&incarnation, Target::Guest).await.map_err(io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
