//! File contents over plain HTTP: `GET /files`, `POST /files`, `POST /files/compose` and `GET /files/tree`.
//!
//! As in `fs`, every operation acts for the user that the request names, on a thread that may block. Only regular files are
//! read and written: others could block forever.

mod compose;
mod download;
mod encoding;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod incoming_file;
mod mime;
mod multipart;
mod range;
mod signature;
mod tree;
mod upload;
mod upload_order;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use http::{Request, StatusCode};
use hyper::body::Incoming;

pub(crate) use compose::compose;
pub(crate) use download::download;
pub(crate) use tree::tree;
pub(crate) use upload::upload;

use crate::blocking;
use crate::files::signature::{Operation, Signed};
use crate::http::{HttpError, Query, same_secret, shown_token};
use crate::paths;
use crate::rights::Denied;
use crate::settings::Settings;
use crate::users::User;

/// How much of a file is read or written at once.
const CHUNK: usize = 256 << 10;

/// Runs file operations on a thread that may block.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let done = blocking::run(work).await;
    done.unwrap_or_else(|error| Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
}

/// Accepts a request that carries the token, or a signature for this path and operation.
fn authorize(
    settings: &Settings,
    request: &Request<Incoming>,
    query: &Query,
    operation: Operation,
) -> Result<(), HttpError> {
    let Some(token) = &settings.access_token else { return Ok(()) };
    let refuse = |message: &str| Err(HttpError::new(StatusCode::UNAUTHORIZED, message));
    if let Some(shown) = shown_token(request) {
        return match same_secret(shown, token.as_bytes()) {
            true => Ok(()),
            false => refuse("access token present in header but does not match"),
        };
    }
    let signed = Signed {
        path: query.get("path").unwrap_or_default(),
        operation,
        user: query.get("username").unwrap_or_default(),
        expiration: query.get("signature_expiration"),
    };
    signed.check(token, query.get("signature")).or_else(|error| refuse(&error.to_string()))
}

/// The user that the query names, or else the default user.
fn find_user(settings: &Settings, name: Option<&str>) -> Result<User, HttpError> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or(&settings.default_user);
    let unknown = || format!("error looking up user '{name}': user: unknown user {name}");
    User::by_name(name).ok_or_else(|| HttpError::new(StatusCode::UNAUTHORIZED, unknown()))
}

fn resolve(settings: &Settings, user: &User, path: &str) -> Result<PathBuf, HttpError> {
    paths::resolve(path, user, settings.default_workdir.as_deref())
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, format!("error resolving path: {error}")))
}

/// Converts an error of the file system to a status. A full disk has its own.
fn failed(doing: &str, path: &Path, error: &io::Error) -> HttpError {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            HttpError::new(StatusCode::INSUFFICIENT_STORAGE, "not enough disk space available")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            HttpError::new(StatusCode::BAD_REQUEST, format!("{doing} '{path}': {error}"))
        }
        io::ErrorKind::PermissionDenied => HttpError::new(StatusCode::FORBIDDEN, format!("{doing} '{path}': {error}")),
        io::ErrorKind::IsADirectory => HttpError::new(StatusCode::BAD_REQUEST, format!("path is a directory: {path}")),
        _ => HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{doing} '{path}': {error}")),
    }
}

impl Denied for HttpError {
    fn is_denied(&self) -> bool {
        self.status == StatusCode::FORBIDDEN
    }
}

fn not_regular(path: &Path) -> HttpError {
    HttpError::new(StatusCode::BAD_REQUEST, format!("path '{}' is not a regular file", path.display()))
}
