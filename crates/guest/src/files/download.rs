//! `GET /files`: downloads one file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use rustix::fs::{Mode, OFlags};

use crate::blocking;
use crate::files::encoding::{Encoding, accepted_encoding};
use crate::files::range::{self, RangeOutcome};
use crate::files::signature::Operation;
use crate::files::{CHUNK, authorize, failed, find_user, in_background, mime, not_regular, resolve};
use crate::http::{Body, HttpError, Query, Reply, empty_body, full_body, stream_body};
use crate::paths::base_name;
use crate::rights::on_behalf_of;
use crate::settings::Settings;

/// How much is read of a file that reports no length, as those in /proc do.
const MAX_UNSIZED: u64 = 4 << 20;

pub(crate) async fn download(settings: &Settings, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let query = Query::parse(request.uri().query());
    authorize(settings, &request, &query, Operation::Read)?;
    let user = find_user(settings, query.get("username"))?;
    let path = resolve(settings, &user, query.get("path").unwrap_or_default())?;
    let headers = request.headers().clone();
    let opened = in_background(move || on_behalf_of(&user, || Opened::new(path.clone()))).await?;
    let partial = range::is_partial_or_conditional(&headers);
    match accepted_encoding(&headers)? {
        Encoding::Gzip if !partial && opened.length > 0 => Ok(opened.into_gzip()),
        _ => opened.into_reply(&headers).await,
    }
}

/// A regular file, opened for a request.
struct Opened {
    path: PathBuf,
    pub file: File,
    length: u64,
    modified: SystemTime,
    /// The first bytes; all of them if the file is small.
    beginning: Bytes,
}

impl Opened {
    fn new(path: PathBuf) -> Result<Self, HttpError> {
        let missing =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        let refuse = |error: io::Error| match missing(&error) {
            true => HttpError::new(StatusCode::NOT_FOUND, format!("path '{}' does not exist", path.display())),
            false => failed("error opening file", &path, &error),
        };
        // Check before opening: opening some devices has side effects.
        check(&path, &std::fs::metadata(&path).map_err(refuse)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| refuse(e.into()))?);
        let meta = file.metadata().map_err(refuse)?;
        check(&path, &meta)?;
        let mut beginning = Vec::new();
        let look = if meta.len() == 0 { MAX_UNSIZED } else { CHUNK as u64 };
        (&mut file).take(look).read_to_end(&mut beginning).map_err(refuse)?;
        let length = meta.len().max(beginning.len() as u64);
        let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Self { path, file, length, modified, beginning: beginning.into() })
    }

    async fn into_reply(self, headers: &HeaderMap) -> Result<Reply, HttpError> {
        let mut reply = Response::new(empty_body());
        self.describe(reply.headers_mut());
        set(reply.headers_mut(), header::ACCEPT_RANGES, "bytes");
        let (from, to) = match range::evaluate(headers, self.length, self.modified) {
            RangeOutcome::Whole => (0, self.length),
            RangeOutcome::Part(from, to) => {
                *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
                set(reply.headers_mut(), header::CONTENT_RANGE, &format!("bytes {from}-{}/{}", to - 1, self.length));
                (from, to)
            }
            RangeOutcome::NotModified => {
                *reply.status_mut() = StatusCode::NOT_MODIFIED;
                return Ok(reply);
            }
            RangeOutcome::PreconditionFailed => {
                return Err(HttpError::new(StatusCode::PRECONDITION_FAILED, "the file has changed"));
            }
            RangeOutcome::Unsatisfiable => {
                let error = HttpError::new(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range: failed to overlap");
                let mut reply = error.into_reply();
                set(reply.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{}", self.length));
                return Ok(reply);
            }
        };
        set(reply.headers_mut(), header::CONTENT_LENGTH, &(to - from).to_string());
        *reply.body_mut() = self.into_body(from, to);
        Ok(reply)
    }

    fn into_body(self, from: u64, to: u64) -> Body {
        if to <= self.beginning.len() as u64 {
            return full_body(self.beginning.slice(from as usize..to as usize));
        }
        stream_body((self.file, from, to), |(file, at, to)| async move {
            if at >= to {
                return None;
            }
            let read = blocking::run(move || {
                let piece = read_piece(&file, at, to);
                (file, piece)
            });
            let (file, piece) = read.await.ok()?;
            let length = piece.as_ref().map_or(to, |piece| piece.len() as u64);
            Some((piece, (file, at + length, to)))
        })
    }

    fn into_gzip(self) -> Reply {
        let mut reply = Response::new(empty_body());
        self.describe(reply.headers_mut());
        set(reply.headers_mut(), header::CONTENT_ENCODING, "gzip");
        let mut file = self.file;
        let rewound = file.seek(SeekFrom::Start(0)).is_ok();
        let packer = rewound.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        *reply.body_mut() = stream_body((file, packer), |(file, packer)| async move {
            let packer = packer?;
            let (piece, state) = blocking::run(move || pack_piece(file, packer)).await.ok()?;
            Some((piece, state))
        });
        reply
    }

    fn describe(&self, headers: &mut HeaderMap) {
        set(
            headers,
            header::CONTENT_TYPE,
            mime::content_type(&self.path, &self.beginning[..self.beginning.len().min(512)]),
        );
        set(headers, header::CONTENT_DISPOSITION, &mime::content_disposition(&base_name(&self.path)));
        set(headers, header::LAST_MODIFIED, &range::http_date(self.modified));
        set(headers, header::VARY, "Accept-Encoding");
    }
}

fn check(path: &Path, meta: &std::fs::Metadata) -> Result<(), HttpError> {
    if meta.is_dir() {
        return Err(HttpError::new(StatusCode::BAD_REQUEST, format!("path '{}' is a directory", path.display())));
    }
    if meta.is_file() { Ok(()) } else { Err(not_regular(path)) }
}

/// Reads the next chunk. If the file has become shorter, the reply ends with an error, so that no client takes it for
/// complete.
fn read_piece(file: &File, at: u64, to: u64) -> io::Result<Bytes> {
    let mut buffer = Vec::with_capacity(CHUNK.min((to - at) as usize));
    let read = rustix::io::pread(file, rustix::buffer::spare_capacity(&mut buffer), at)?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    buffer.truncate((to - at) as usize);
    Ok(buffer.into())
}

type Packing = (File, Option<GzEncoder<Vec<u8>>>);

/// Reads and compresses until there is something to send. The new state has no encoder after the last chunk.
fn pack_piece(mut file: File, mut packer: GzEncoder<Vec<u8>>) -> (io::Result<Bytes>, Packing) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let step = file.read(&mut buffer).and_then(|read| packer.write_all(&buffer[..read]).map(|()| read));
        match step {
            Ok(0) => return (packer.finish().map(Bytes::from), (file, None)),
            Ok(_) if packer.get_ref().is_empty() => {}
            Ok(_) => {
                let piece = std::mem::take(packer.get_mut());
                return (Ok(piece.into()), (file, Some(packer)));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (Err(error), (file, None)),
        }
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
