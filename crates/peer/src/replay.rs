//! A request body that can be sent again, as long as only its beginning was read. So a request that went to the wrong
//! server goes on to the right one, without its client noticing.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// How much is kept. Larger bodies can be sent again only if little of them was read.
const MAX_KEPT: u64 = 1 << 20;

/// Keeps the beginning of a body.
#[derive(Debug)]
pub(crate) struct Replay(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    rest: Body,
    seen: Vec<Bytes>,
    size: u64,
    /// Trailers, an error, or more data than is kept.
    is_lost: bool,
    /// Only the newest copy may read.
    copies: u64,
}

/// One reading of the body.
#[derive(Debug)]
struct Copy {
    kept: Arc<Mutex<Kept>>,
    number: u64,
    position: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the request was sent to another server meanwhile")]
struct Superseded;

impl Replay {
    pub(crate) fn of(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Kept { rest: body, seen: Vec::new(), size: 0, is_lost: false, copies: 0 })))
    }

    /// The body from its beginning. `None` if too much of it was read. Earlier copies fail from now on.
    pub(crate) fn copy(&self) -> Option<Body> {
        let mut kept = lock(&self.0);
        if kept.is_lost {
            return None;
        }
        kept.copies += 1;
        // A body that has no content must look like that, because its framing depends on it.
        if kept.seen.is_empty() && kept.rest.is_end_stream() {
            return Some(Body::empty());
        }
        Some(Body::new(Copy { kept: Arc::clone(&self.0), number: kept.copies, position: 0 }))
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for Copy {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let mut kept = lock(&this.kept);
        if kept.copies != this.number {
            return Poll::Ready(Some(Err(Superseded.into())));
        }
        if let Some(seen) = kept.seen.get(this.position) {
            this.position += 1;
            return Poll::Ready(Some(Ok(Frame::data(seen.clone()))));
        }
        let polled = std::task::ready!(Pin::new(&mut kept.rest).poll_frame(context));
        match &polled {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) if !kept.is_lost && kept.size + data.len() as u64 <= MAX_KEPT => {
                    kept.size += data.len() as u64;
                    kept.seen.push(data.clone());
                    this.position += 1;
                }
                _ => {
                    kept.is_lost = true;
                    kept.seen = Vec::new();
                    this.position = 0;
                }
            },
            Some(Err(_)) => kept.is_lost = true,
            None => {}
        }
        Poll::Ready(polled.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        let kept = lock(&self.kept);
        self.position >= kept.seen.len() && kept.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let kept = lock(&self.kept);
        let unread: u64 = kept.seen.iter().skip(self.position).map(|seen| seen.len() as u64).sum();
        let rest = kept.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + unread);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + unread);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn chunks(chunks: Vec<Vec<u8>>) -> Body {
        Body::from_stream(futures::stream::iter(
            chunks.into_iter().map(|chunk| Ok::<_, std::io::Error>(Bytes::from(chunk))),
        ))
    }

    #[tokio::test]
    async fn a_body_of_which_a_part_was_read_is_read_again_from_its_beginning() {
        let replay = Replay::of(chunks(vec![b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]));
        let mut first = replay.copy().unwrap();
        assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
        let second = replay.copy().unwrap();
        assert!(first.frame().await.unwrap().is_err(), "only one of them may read");
        assert_eq!(second.collect().await.unwrap().to_bytes(), "onetwothree");
        assert_eq!(replay.copy().unwrap().collect().await.unwrap().to_bytes(), "onetwothree");
    }

    #[tokio::test]
    async fn a_large_body_passes_whole_and_only_its_beginning_can_be_sent_again() {
        let large = vec![vec![7; 700 << 10]; 3];
        let replay = Replay::of(chunks(large));
        let mut first = replay.copy().unwrap();
        first.frame().await.unwrap().unwrap();
        assert!(replay.copy().is_some());
        let all = replay.copy().unwrap().collect().await.unwrap().to_bytes();
        assert_eq!(all.len(), 3 * (700 << 10));
        assert!(replay.copy().is_none());
    }

    #[tokio::test]
    async fn a_request_without_a_body_stays_one() {
        let replay = Replay::of(Body::empty());
        assert!(replay.copy().unwrap().is_end_stream());
        assert!(replay.copy().unwrap().is_end_stream());
        let replay = Replay::of(Body::from("12345"));
        assert_eq!(replay.copy().unwrap().size_hint().exact(), Some(5));
    }
}
