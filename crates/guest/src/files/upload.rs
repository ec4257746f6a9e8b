//! `POST /files`: uploads one file as the body, or several as the parts of a form.
//!
//! The body goes through a small channel to a thread of its own, which decodes and writes it. Reading and writing overlap,
//! memory use is bounded, and a slow upload does not occupy a thread that other requests wait for.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, Bytes};
use flate2::read::MultiGzDecoder;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{mpsc, oneshot};

use crate::files::encoding::{Encoding, content_encoding};
use crate::files::incoming_file::IncomingFile;
use crate::files::multipart::{Parts, boundary};
use crate::files::signature::Operation;
use crate::files::write::Written;
use crate::files::{CHUNK, authorize, find_user};
use crate::fs::parse_metadata;
use crate::http::{HttpError, Query, Reply, json_reply};
use crate::paths;
use crate::settings::Settings;
use crate::users::User;

/// How many chunks of a body may wait for the disk.
const MAX_QUEUED_CHUNKS: usize = 8;
const STACK_SIZE: usize = 256 << 10;
/// How long a client may pause between two chunks.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the guest reads the rest of a refused body, so that the client gets to see the reply.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn upload(settings: &Settings, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let (job, mut body) = match Job::parse(settings, &request) {
        Ok(job) => (job, request.into_body()),
        Err(error) => {
            drain(&mut request.into_body()).await;
            return Err(error);
        }
    };
    let (pieces, queue) = mpsc::channel::<BodyChunk>(MAX_QUEUED_CHUNKS);
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("upload".to_owned()).stack_size(STACK_SIZE);
    let work = move || {
        let _ = done.send(job.run(BodyReader { queue, current: Bytes::new(), over: false }));
    };
    thread.spawn(work).map_err(|error| {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, format!("cannot start a thread for the upload: {error}"))
    })?;
    feed(&mut body, pieces).await;
    let written = result
        .await
        .unwrap_or_else(|_| Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, "the upload was interrupted")));
    if written.is_err() {
        drain(&mut body).await;
    }
    Ok(json_reply(&written?))
}

/// A chunk of a body, or `None` at its end. The end is explicit because a broken connection may end the channel without an
/// error.
type BodyChunk = io::Result<Option<Bytes>>;

/// Sends the body's chunks until it ends or the thread stops reading.
async fn feed(body: &mut Incoming, pieces: mpsc::Sender<BodyChunk>) {
    loop {
        let piece = match tokio::time::timeout(CHUNK_TIMEOUT, body.frame()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => Ok(Some(data)),
                Err(_trailers) => continue,
            },
            Ok(Some(Err(error))) => Err(io::Error::other(error)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let over = !matches!(piece, Ok(Some(_)));
        if pieces.send(piece).await.is_err() || over {
            return;
        }
    }
}

async fn drain(body: &mut Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
}

/// Reads the chunks of a body.
struct BodyReader {
    queue: mpsc::Receiver<BodyChunk>,
    current: Bytes,
    over: bool,
}

impl BodyReader {
    fn next(&mut self) -> BodyChunk {
        match self.queue.blocking_recv() {
            Some(Ok(None)) => {
                // Later reads return the end again.
                self.over = true;
                Ok(None)
            }
            Some(piece) => piece,
            None if self.over => Ok(None),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.next()? {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let n = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}

enum Form {
    /// The body is the file.
    Raw(PathBuf),
    /// Each part is a file. A path in the query applies to all of them.
    Parts { boundary: String, path: Option<String> },
}

/// What to write, and as which user.
struct Job {
    user: User,
    default_workdir: Option<String>,
    metadata: BTreeMap<String, String>,
    encoding: Encoding,
    form: Form,
}

impl Job {
    fn parse(settings: &Settings, request: &Request<Incoming>) -> Result<Self, HttpError> {
        let query = Query::parse(request.uri().query());
        authorize(settings, request, &query, Operation::Write)?;
        let user = find_user(settings, query.get("username"))?;
        let default_workdir = settings.default_workdir.clone();
        let metadata = parse_metadata(request.headers())
            .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let form = Form::parse(content_type.unwrap_or_default(), query.get("path"), &user, default_workdir.as_deref())?;
        Ok(Self { user, default_workdir, metadata, encoding: content_encoding(request.headers())?, form })
    }

    fn run(self, mut body: BodyReader) -> Result<Vec<Written>, HttpError> {
        match (self.encoding, &self.form) {
            (Encoding::Identity, Form::Raw(path)) => self.write_raw(path, |file| write_chunks(&mut body, file)),
            (Encoding::Identity, Form::Parts { .. }) => self.write(body),
            (Encoding::Gzip, _) => self.write(MultiGzDecoder::new(io::BufReader::with_capacity(64 << 10, body))),
        }
    }

    fn write(&self, mut body: impl Read) -> Result<Vec<Written>, HttpError> {
        match &self.form {
            Form::Raw(path) => self.write_raw(path, |file| copy(&mut body, file)),
            Form::Parts { boundary, path } => self.write_parts(Parts::new(body, boundary), path.as_deref()),
        }
    }

    fn write_raw(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut IncomingFile<'_>) -> Result<(), HttpError>,
    ) -> Result<Vec<Written>, HttpError> {
        let mut file = IncomingFile::start(path.to_owned(), &self.user, &self.metadata)?;
        fill(&mut file)?;
        Ok(vec![Written::new(file.finish()?, self.metadata.clone())])
    }

    fn write_parts(&self, mut parts: Parts<impl Read>, path: Option<&str>) -> Result<Vec<Written>, HttpError> {
        let bad = |message: String| HttpError::new(StatusCode::BAD_REQUEST, message);
        let mut written: Vec<Written> = Vec::new();
        while let Some(part) = parts.next_part().map_err(|error| bad(error.to_string()))? {
            if part.name.as_deref() != Some("file") {
                continue;
            }
            let given = path.map(str::to_owned).or(part.file_name);
            let given =
                given.ok_or_else(|| bad("a part named 'file' has no filename and no path is given".to_owned()))?;
            let target = resolve(&given, &self.user, self.default_workdir.as_deref())?;
            if written.iter().any(|other| other.path == target) {
                return Err(bad(duplicate(&target, &written)));
            }
            let mut file = IncomingFile::start(target, &self.user, &self.metadata)?;
            while let Some(data) = parts.data().map_err(|error| bad(error.to_string()))? {
                file.write(data)?;
            }
            written.push(Written::new(file.finish()?, self.metadata.clone()));
        }
        Ok(written)
    }
}

impl Form {
    fn parse(
        content_type: &str,
        path: Option<&str>,
        user: &User,
        default_workdir: Option<&str>,
    ) -> Result<Self, HttpError> {
        let bad = |message: String| HttpError::new(StatusCode::BAD_REQUEST, message);
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind == "application/octet-stream" {
            let path = path.ok_or_else(|| bad("path query parameter is required for raw body upload".to_owned()))?;
            return Ok(Self::Raw(resolve(path, user, default_workdir)?));
        }
        if !kind.starts_with("multipart/") {
            let expected = "expected multipart/form-data or application/octet-stream";
            return Err(bad(format!("unsupported content type: {content_type}, {expected}")));
        }
        let boundary = boundary(content_type);
        let boundary = boundary.ok_or_else(|| bad("error parsing multipart form: no multipart boundary".to_owned()))?;
        Ok(Self::Parts { boundary, path: path.map(str::to_owned) })
    }
}

fn resolve(path: &str, user: &User, default_workdir: Option<&str>) -> Result<PathBuf, HttpError> {
    paths::resolve(path, user, default_workdir)
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, format!("error resolving path: {error}")))
}

fn duplicate(path: &Path, written: &[Written]) -> String {
    let others: Vec<_> = written.iter().filter(|w| w.path != path).map(|w| w.path.display().to_string()).collect();
    let mut message = format!(
        "you cannot upload multiple files to the same path '{}' in one upload request, only the first specified file was uploaded",
        path.display()
    );
    if others.len() > 1 {
        message.push_str(&format!(", also the following files were uploaded: {}", others.join(", ")));
    }
    message
}

/// Why a body is incomplete.
fn broken(error: &io::Error) -> HttpError {
    match error.kind() {
        io::ErrorKind::TimedOut => HttpError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        _ => HttpError::new(StatusCode::BAD_REQUEST, format!("error reading request body: {error}")),
    }
}

/// Writes an unencoded body without another buffer in between.
fn write_chunks(body: &mut BodyReader, file: &mut IncomingFile<'_>) -> Result<(), HttpError> {
    while let Some(piece) = body.next().map_err(|error| broken(&error))? {
        file.write(&piece)?;
    }
    Ok(())
}

fn copy(body: &mut impl Read, file: &mut IncomingFile<'_>) -> Result<(), HttpError> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => file.write(&buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(&error)),
        }
    }
}
