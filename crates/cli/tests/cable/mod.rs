//! A way between two that can be cut, or hold everything back without telling.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Cable {
    port: u16,
    /// Counts cuts: whoever sees it change ends.
    cuts: watch::Sender<u32>,
    frozen: watch::Sender<bool>,
}

impl Cable {
    pub(crate) async fn to(server: u16) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let cable = Arc::new(Self { port, cuts: watch::Sender::new(0), frozen: watch::Sender::new(false) });
        tokio::spawn(accept(listener, server, Arc::clone(&cable)));
        cable
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends all connections that there are.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Carries nothing any more, or again.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }
}

async fn accept(listener: TcpListener, server: u16, cable: Arc<Cable>) {
    while let Ok((near, _)) = listener.accept().await {
        let (mut cuts, frozen) = (cable.cuts.subscribe(), cable.frozen.subscribe());
        tokio::spawn(async move {
            let Ok(far) = TcpStream::connect(("127.0.0.1", server)).await else { return };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::select! {
                _ = cuts.changed() => {}
                () = carry(near_in, far_out, frozen.clone()) => {}
                () = carry(far_in, near_out, frozen) => {}
            }
        });
    }
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut frozen: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
