//! The `filesystem.Filesystem` service: inspects, creates, moves, removes and watches files in the sandbox.
//!
//! Every operation acts for the user that the request names: new files belong to that user, and none is refused because of
//! who owns a file (see `rights`). File operations run on blocking threads, because a mount may be slow or stuck and other
//! requests must not wait for it.

mod entry;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod list_dir;
mod make_dir;
mod metadata;
mod move_entry;
mod remove;
mod stat;
mod tree;
mod watch_dir;
mod watchers;

use std::io;
use std::path::PathBuf;

pub(crate) use list_dir::list_dir;
pub(crate) use make_dir::make_dir;
pub(crate) use metadata::{parse_metadata, write_metadata};
pub(crate) use move_entry::move_entry;
pub(crate) use remove::remove;
pub(crate) use stat::stat;
pub(crate) use watch_dir::watch_dir;
pub(crate) use watchers::{SavedWatcher, Watchers, create_watcher, get_watcher_events, remove_watcher};

use crate::paths;
use crate::rights::{Denied, on_behalf_of};
use crate::rpc::{Call, Code, RpcError};
use crate::users::User;

/// Runs file operations on these paths for the user, on a thread that may block.
async fn blocking<T: Send + 'static, const N: usize>(
    user: User,
    paths: [PathBuf; N],
    work: impl Fn(&[PathBuf; N], &User) -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let done = crate::blocking::run(move || on_behalf_of(&user, || work(&paths, &user)));
    let done = done.await;
    done.unwrap_or_else(|error| Err(RpcError::new(Code::Internal, format!("file operation failed: {error}"))))
}

impl Denied for RpcError {
    fn is_denied(&self) -> bool {
        self.code == Code::PermissionDenied
    }
}

/// Makes the path of a call absolute.
fn resolve(call: &Call, user: &User, path: &str) -> Result<PathBuf, RpcError> {
    paths::resolve(path, user, call.settings.default_workdir.as_deref())
        .map_err(|error| RpcError::new(Code::InvalidArgument, error.to_string()))
}

/// Converts an error of the file system; `doing` says what failed.
fn failed(doing: &str, error: &io::Error) -> RpcError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        io::ErrorKind::InvalidFilename | io::ErrorKind::NotADirectory => Code::InvalidArgument,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Code::ResourceExhausted,
        _ if error.raw_os_error() == Some(libc::ELOOP) => Code::FailedPrecondition,
        _ => Code::Internal,
    };
    RpcError::new(code, format!("{doing}: {error}"))
}
