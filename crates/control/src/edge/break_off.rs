//! Breaks a response off, so that its client has everything that was passed on, and can tell what happened.
//!
//! HTTP drops what it has buffered when a body fails, so the failure waits until that is written.
//!
//! Over HTTP/1, the connection ends with the response. E2B's Python SDKs from 2.38 to 2.52 take an orderly end (FIN) in
//! the middle of a response for a fault of the protocol, and report it as a time-out. After a reset (RST), they check
//! whether the sandbox still runs, as later versions do in both cases. Earlier versions check only after a FIN. Clients
//! of the former kind use the library `connectrpc` and name it. Over TLS, all of them check.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, header};
use tokio::time::{Instant, Sleep};

use crate::delivery::{ClientConnection, Outbox};

/// How long a client that reads slowly may delay the end.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The kernel does not tell when the client's host has acknowledged everything.
const RECHECK: Duration = Duration::from_millis(5);
const RESET_CLIENTS: &[u8] = b"connectrpc/";

/// Where a response goes, and how it may break off.
#[derive(Debug)]
pub(super) struct Client {
    outbox: Arc<Outbox>,
    /// Whether a Connect stream should end with a reset.
    prefers_reset: bool,
}

/// A response that is being broken off.
#[derive(Debug)]
pub(super) struct BreakOff {
    outbox: Arc<Outbox>,
    resets: bool,
    give_up: Instant,
    recheck: Pin<Box<Sleep>>,
}

impl Client {
    /// Returns the client that sent a request with these headers.
    pub(super) fn of(connection: &ClientConnection, headers: &HeaderMap) -> Self {
        let agent = headers.get(header::USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
        let prefers_reset = connection.is_http1 && !connection.is_encrypted && agent.starts_with(RESET_CLIENTS);
        Self { outbox: Arc::clone(&connection.outbox), prefers_reset }
    }

    /// Records that a part of the response goes to HTTP.
    pub(super) fn hand_out(&self) {
        self.outbox.hand_out();
    }

    /// `may_reset`: for a Connect stream, unless the sandbox is still there.
    pub(super) fn break_off(&self, may_reset: bool) -> BreakOff {
        BreakOff {
            outbox: Arc::clone(&self.outbox),
            resets: may_reset && self.prefers_reset,
            give_up: Instant::now() + MAX_WAIT,
            recheck: Box::pin(tokio::time::sleep(RECHECK)),
        }
    }
}

impl BreakOff {
    /// Ready if the body may fail now.
    pub(super) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.may_end() {
                return Poll::Ready(());
            }
            std::task::ready!(self.recheck.as_mut().poll(context));
            self.recheck.as_mut().reset(Instant::now() + RECHECK);
        }
    }

    fn may_end(&self) -> bool {
        // A reset discards what has not arrived. If the client does not read in time, the connection ends with a FIN,
        // and the kernel still sends the rest.
        if Instant::now() >= self.give_up {
            return true;
        }
        if !self.outbox.is_flushed() {
            return false;
        }
        if self.resets && !self.outbox.has_arrived() {
            return false;
        }
        if self.resets {
            self.outbox.reset_when_closed();
        }
        true
    }
}
