//! After a protocol switch: bytes both ways until one side or the sandbox ends.

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

/// What is carried at once, each way. Tunnels are few and may carry a lot: the usual 8 KiB cost twice the time.
const BUFFER: usize = 64 << 10;

/// The client's half of a switch, to be taken before the request is sent on.
pub(super) fn client_half(request: &mut Request<Body>) -> OnUpgrade {
    hyper::upgrade::on(request)
}

/// Joins both halves once the sandbox has agreed to switch.
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
