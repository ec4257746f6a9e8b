//! Copies bytes both ways after a protocol switch, until one side or the sandbox ends.

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

/// The buffer for each direction. Tunnels are few and may transfer a lot: with the usual 8 KiB, they take twice the
/// time.
const BUFFER: usize = 64 << 10;

/// Returns the client's half of a switch. Must be called before the request is forwarded.
pub(super) fn client_half(request: &mut Request<Body>) -> OnUpgrade {
    hyper::upgrade::on(request)
}

/// Joins both halves after the sandbox has agreed to switch.
pub(super) fn join(
    client: OnUpgrade,
    response: &mut Response<Incoming>,
    gate: CancellationToken,
    permit: OwnedSemaphorePermit,
) {
    let sandbox = hyper::upgrade::on(response);
    tokio::spawn(async move {
        let _permit = permit;
        let (Ok(client), Ok(sandbox)) = tokio::join!(client, sandbox) else { return };
        let (mut client, mut sandbox) = (TokioIo::new(client), TokioIo::new(sandbox));
        tokio::select! {
            () = gate.cancelled() => {}
            _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut sandbox, BUFFER, BUFFER) => {}
        }
    });
}
