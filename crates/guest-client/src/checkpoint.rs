//! Has the guest take part in a checkpoint: see [`isopod_wire::checkpoint`].
//!
//! Only the host can call this. Files go from and to disk in pieces, because they can be large.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use isopod_wire::checkpoint::{
    FILES_PATH, HOLD_PATH, Held, IDENTITY_PATH, MAX_STATE, RELEASE_PATH, RESTORE_FILES_PATH, RESTORE_FINISH_PATH,
    RESTORE_PATH, RestoredAs, Restoring, STATE_PATH,
};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::transport::{
    Body, BoxError, Connector, Http, TransportError, empty_body, full_body, message_of, read_limited,
};

const CONTROL: HeaderName = HeaderName::from_static("x-isopod-control");
/// How long the guest may take for a step, or be silent during a transfer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest other reply: some thousand connections.
const MAX_REPLY: usize = 1 << 20;
const PIECE: usize = 256 << 10;

/// A client of one guest.
#[derive(Clone)]
pub struct Checkpoint {
    http: Http,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The guest refused. The text is the guest's.
    #[error("the guest answered {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("the guest sent more than {0} bytes")]
    TooLarge(u64),
    #[error("the guest sent an invalid reply")]
    Reply(#[source] serde_json::Error),
    #[error("could not read or write a file of the checkpoint")]
    File(#[source] std::io::Error),
}

impl Checkpoint {
    /// Connects to a guest over its Unix socket.
    pub fn over(connector: Connector) -> Self {
        let base = "http://localhost".parse().expect("a constant URL is valid");
        let headers = HeaderMap::from_iter([(CONTROL, HeaderValue::from_static("1"))]);
        Self { http: Http::new(connector, base, headers, TIMEOUT) }
    }

    /// The guest starts nothing new, until [`Self::release`] or for a minute.
    pub async fn hold(&self) -> Result<Held, CheckpointError> {
        self.json(HOLD_PATH, empty_body()).await
    }

    /// Writes the guest's state to a file.
    pub async fn save_state(&self, file: &mut File) -> Result<(), CheckpointError> {
        self.download(Method::POST, STATE_PATH, file, MAX_STATE as u64).await
    }

    /// Writes the sandbox's files that are in memory to a file, if they are not larger than `limit`.
    pub async fn save_files(&self, file: &mut File, limit: u64) -> Result<(), CheckpointError> {
        self.download(Method::GET, FILES_PATH, file, limit).await
    }

    /// The guest goes on.
    pub async fn release(&self) -> Result<(), CheckpointError> {
        self.exchange(Method::POST, RELEASE_PATH, empty_body()).await.map(drop)
    }

    /// Gives the files to another guest.
    pub async fn restore_files(&self, file: File) -> Result<(), CheckpointError> {
        let pieces = futures::stream::try_unfold(file, |mut file| async move {
            let mut piece = vec![0; PIECE];
            let length = file.read(&mut piece).await?;
            piece.truncate(length);
            Ok::<_, std::io::Error>((length > 0).then_some((Bytes::from(piece), file)))
        });
        let frames = pieces.map_ok(Frame::data).map_err(|error| Box::new(error) as BoxError);
        let body = StreamBody::new(frames).boxed_unsync();
        let request = self.http.request(Method::PUT, RESTORE_FILES_PATH, HeaderMap::new(), body)?;
        self.http.upload(request, accepted).await.map(drop)
    }

    /// Gives the state to another guest, which makes the connections that restored processes need.
    pub async fn restore(&self, state: Bytes) -> Result<Restoring, CheckpointError> {
        self.json(RESTORE_PATH, full_body(state)).await
    }

    /// The processes are there.
    pub async fn finish_restore(&self, restored: RestoredAs) -> Result<(), CheckpointError> {
        let path = format!("{RESTORE_FINISH_PATH}?copy={}&log={}", restored.is_copy(), restored.has_log());
        self.exchange(Method::POST, &path, empty_body()).await.map(drop)
    }

    /// Gives a copy its own host name and machine id.
    pub async fn set_identity(&self, host_name: &str) -> Result<(), CheckpointError> {
        self.exchange(Method::POST, &format!("{IDENTITY_PATH}?name={host_name}"), empty_body()).await.map(drop)
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, path: &str, body: Body) -> Result<T, CheckpointError> {
        let reply = self.exchange(Method::POST, path, body).await?;
        serde_json::from_slice(&reply).map_err(CheckpointError::Reply)
    }

    async fn exchange(&self, method: Method, path: &str, body: Body) -> Result<Bytes, CheckpointError> {
        let request = self.http.request(method, path, HeaderMap::new(), body)?;
        self.http.exchange(request, accepted).await
    }

    async fn download(&self, method: Method, path: &str, file: &mut File, limit: u64) -> Result<(), CheckpointError> {
        let request = self.http.request(method, path, HeaderMap::new(), empty_body())?;
        let reply =
            self.http.within(TIMEOUT, async { Ok::<_, CheckpointError>(self.http.send(request).await?) }).await?;
        if !reply.status().is_success() {
            return self.http.within(TIMEOUT, accepted(reply)).await.map(drop);
        }
        let mut body = reply.into_body();
        let mut written = 0;
        loop {
            let frame = async { Ok::<_, CheckpointError>(body.frame().await) };
            let Some(frame) = self.http.within(TIMEOUT, frame).await? else { break };
            let Ok(data) = frame.map_err(|error| self.http.broken(error))?.into_data() else { continue };
            written += data.len() as u64;
            if written > limit {
                return Err(CheckpointError::TooLarge(limit));
            }
            file.write_all(&data).await.map_err(CheckpointError::File)?;
        }
        file.flush().await.map_err(CheckpointError::File)
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint").finish_non_exhaustive()
    }
}

/// The body of a reply, if it is a success.
async fn accepted(reply: Response<Incoming>) -> Result<Bytes, CheckpointError> {
    let status = reply.status();
    let body =
        read_limited(reply.into_body(), MAX_REPLY).await.map_err(|_| CheckpointError::TooLarge(MAX_REPLY as u64))?;
    if status.is_success() { Ok(body) } else { Err(CheckpointError::Refused { status, message: message_of(&body) }) }
}
