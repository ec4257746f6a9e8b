//! The messages of a server stream. Every stream ends with its end frame or with an error, never silently.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use isopod_wire::rpc::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::codec::Codec;
use super::frames::{Frame, Frames};
use crate::guest::GuestError;
use crate::guest::error::Refusal;
use crate::transport::{Http, TransportError};

/// How long after its deadline a guest may end a stream, and how much it may send in that time.
const GRACE: Duration = Duration::from_secs(10);
const GRACE_BYTES: usize = 64 << 20;

/// Limits the wait for the next bytes. What was sent in time may be read late, but after the deadline, a guest cannot
/// keep a stream open by sending a little now and then, or endlessly.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamLimits {
    silence: Option<Duration>,
    deadline: Option<Instant>,
    grace: Duration,
    grace_bytes: usize,
}

impl StreamLimits {
    pub(super) fn new(silence: Option<Duration>, deadline: Option<Duration>) -> Self {
        let deadline = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        Self { silence, deadline, grace: GRACE, grace_bytes: GRACE_BYTES }
    }

    fn limit(&self) -> Option<Duration> {
        let until_deadline = self.deadline.map(|at| at.saturating_duration_since(Instant::now()) + self.grace);
        match (self.silence, until_deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Records bytes that arrived after a wait that began at `since`. Returns false if too much has arrived after the
    /// deadline.
    #[must_use]
    fn spend(&mut self, since: Instant, bytes: usize) -> bool {
        let Some(deadline) = self.deadline else { return true };
        let now = Instant::now();
        if now < deadline {
            return true;
        }
        self.grace = self.grace.saturating_sub(now.duration_since(since.max(deadline)));
        self.grace_bytes = self.grace_bytes.saturating_sub(bytes);
        self.grace_bytes > 0
    }
}

#[derive(Debug)]
pub(crate) struct MessageStream<M> {
    http: Http,
    codec: Codec,
    body: Incoming,
    frames: Frames,
    limits: StreamLimits,
    ended: bool,
    message: PhantomData<fn() -> M>,
}

impl<M: Message + DeserializeOwned> MessageStream<M> {
    pub(super) fn new(http: Http, codec: Codec, body: Incoming, limits: StreamLimits) -> Self {
        Self { http, codec, body, frames: Frames::default(), limits, ended: false, message: PhantomData }
    }

    /// Returns the next message, or `None` after the end or an error.
    ///
    /// Cancel-safe: if the future is dropped, the next call continues where this one was.
    pub(crate) async fn next(&mut self) -> Result<Option<M>, GuestError> {
        if self.ended {
            return Ok(None);
        }
        let next = self.try_next().await;
        self.ended = !matches!(next, Ok(Some(_)));
        next
    }

    async fn try_next(&mut self) -> Result<Option<M>, GuestError> {
        loop {
            match self.frames.take()? {
                Some(Frame::Message(payload)) => return self.codec.decode(payload).map(Some),
                Some(Frame::End(payload)) => return read_end(&payload).map(|()| None),
                None => {}
            }
            match self.next_bytes().await? {
                Some(bytes) => self.frames.push(&bytes),
                None => return Err(TransportError::Truncated { target: self.http.target().to_owned() }.into()),
            }
        }
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>, TransportError> {
        let Some(limit) = self.limits.limit() else { return data(&self.http, &mut self.body).await };
        let silent = || TransportError::Silent { target: self.http.target().to_owned(), waited: limit };
        let since = Instant::now();
        let bytes = tokio::time::timeout(limit, data(&self.http, &mut self.body)).await.map_err(|_| silent())??;
        match self.limits.spend(since, bytes.as_ref().map_or(0, Bytes::len)) {
            true => Ok(bytes),
            false => Err(silent()),
        }
    }
}

async fn data(http: &Http, body: &mut Incoming) -> Result<Option<Bytes>, TransportError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| http.broken(error))?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

pub(super) fn read_end(payload: &[u8]) -> Result<(), GuestError> {
    #[derive(Deserialize)]
    struct End {
        error: Option<Refusal>,
    }
    let end: End = serde_json::from_slice(payload)
        .map_err(|error| GuestError::Protocol(format!("unreadable end of stream: {error}")))?;
    end.error.map_or(Ok(()), |refusal| Err(refusal.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_patience_counts_and_the_deadline_has_some_grace() {
        let seconds = Duration::from_secs;
        assert_eq!(StreamLimits::new(None, None).limit(), None);
        assert_eq!(StreamLimits::new(Some(seconds(5)), Some(seconds(60))).limit(), Some(seconds(5)));
        let limit = StreamLimits::new(None, Some(seconds(60))).limit().unwrap();
        assert!(limit > seconds(60) && limit <= seconds(60) + GRACE);
        assert_eq!(StreamLimits::new(None, Some(Duration::ZERO)).limit(), Some(GRACE));
        assert_eq!(StreamLimits::new(None, Some(Duration::MAX)).limit(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_after_the_deadline_uses_up_the_grace() {
        let mut limits = StreamLimits::new(None, Some(Duration::from_secs(5)));
        tokio::time::advance(Duration::from_secs(5)).await;
        for left in (0..10).rev() {
            let since = Instant::now();
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(limits.spend(since, 1));
            assert_eq!(limits.limit(), Some(Duration::from_secs(left)));
        }
        assert!(!limits.spend(Instant::now(), GRACE_BYTES));
    }
}
