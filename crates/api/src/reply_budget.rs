//! Limits the memory that the replies of one team take while their clients don't read them.
//!
//! The results of a cell can be tens of megabytes, and a client that doesn't read its reply leaves it in the server's memory.
//! Large replies are counted until the connection has taken them, and a team with too many of them has to read those first.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use isopod_store::TeamId;

use crate::error::ApiError;

/// The replies of one team that are still in memory may have this size together. One more may begin while they do.
const MAX_UNREAD: u64 = 256 << 20;
/// Smaller replies aren't counted: the connection buffers about as much anyway.
const SMALL: u64 = 256 << 10;
/// The connection takes a large reply in pieces of this size, as its client reads.
const PIECE: usize = 64 << 10;

/// The large replies that are in memory, by team.
#[derive(Clone, Debug)]
pub(crate) struct ReplyBudget {
    unread: Arc<Mutex<HashMap<TeamId, u64>>>,
    max: u64,
}

impl Default for ReplyBudget {
    fn default() -> Self {
        Self::new(MAX_UNREAD)
    }
}

impl ReplyBudget {
    fn new(max: u64) -> Self {
        Self { unread: Arc::default(), max }
    }

    /// Refuses a request before it does anything, if the team has to read earlier replies first.
    pub(crate) fn admit(&self, team: &TeamId) -> Result<(), ApiError> {
        let unread = self.lock().get(team).copied().unwrap_or_default();
        if unread < self.max {
            return Ok(());
        }
        let message =
            format!("your team has {} MiB of replies that nobody reads; read or close them first", unread >> 20);
        let refused = ApiError::new(http::StatusCode::SERVICE_UNAVAILABLE, message);
        Err(refused.with_code("replies_unread").retry_in(Duration::from_secs(5)))
    }

    /// Counts a large reply until it has been sent or dropped.
    pub(crate) fn count(&self, team: &TeamId, response: Response) -> Response {
        match response.body().size_hint().exact() {
            Some(size) if size > SMALL => {
                let counted = self.begin(team.clone(), size);
                response.map(|inner| Body::new(CountedBody { inner, piece: Bytes::new(), _counted: counted }))
            }
            _ => response,
        }
    }

    fn begin(&self, team: TeamId, size: u64) -> Counted {
        *self.lock().entry(team.clone()).or_default() += size;
        Counted { budget: self.clone(), team, size }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TeamId, u64>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reply in memory, until it is dropped.
struct Counted {
    budget: ReplyBudget,
    team: TeamId,
    size: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut unread = self.budget.lock();
        if let Some(left) = unread.get_mut(&self.team) {
            *left = left.saturating_sub(self.size);
            if *left == 0 {
                unread.remove(&self.team);
            }
        }
    }
}

/// A body in pieces. As one piece, it would be in the connection's buffer as a whole, and gone from here.
struct CountedBody {
    inner: Body,
    /// The rest of the last frame.
    piece: Bytes,
    _counted: Counted,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.piece.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.piece = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let size = self.piece.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.piece.split_to(size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.piece.len() as u64;
        match self.inner.size_hint().exact() {
            Some(inner) => SizeHint::with_exact(inner + rest),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const SIZE: usize = 1 << 20;

    fn reply() -> Response {
        let bytes: Vec<u8> = (0..SIZE).map(|number| (number % 251) as u8).collect();
        Response::new(Body::from(bytes))
    }

    #[tokio::test]
    async fn a_team_that_does_not_read_its_replies_is_refused_and_others_are_not() {
        let budget = ReplyBudget::new(2 * SIZE as u64);
        let (team, other) = (TeamId("a".to_owned()), TeamId("b".to_owned()));
        let first = budget.count(&team, reply());
        assert!(budget.admit(&team).is_ok());
        let second = budget.count(&team, reply());
        let refused = budget.admit(&team).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.code_or_default()), (503, "replies_unread"));
        assert!(budget.admit(&other).is_ok());
        drop(second);
        assert!(budget.admit(&team).is_ok(), "one was dropped");
        let read = first.into_body().collect().await.unwrap().to_bytes();
        let whole = reply().into_body().collect().await.unwrap().to_bytes();
        assert!(read == whole, "it has other bytes in pieces");
        assert!(budget.lock().is_empty());
    }

    #[tokio::test]
    async fn a_large_reply_is_sent_in_pieces_with_its_length_known() {
        let budget = ReplyBudget::default();
        let mut body = budget.count(&TeamId("a".to_owned()), reply()).into_body();
        assert_eq!(body.size_hint().exact(), Some(SIZE as u64));
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.len(), PIECE);
        assert_eq!(body.size_hint().exact(), Some((SIZE - PIECE) as u64));
        assert_eq!(budget.lock().len(), 1, "the rest is still here");
    }

    #[tokio::test]
    async fn small_replies_are_not_counted() {
        let budget = ReplyBudget::new(1);
        let team = TeamId("a".to_owned());
        let _kept = budget.count(&team, Response::new(Body::from("small")));
        assert!(budget.admit(&team).is_ok());
    }
}
