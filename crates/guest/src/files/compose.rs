//! `POST /files/compose`: concatenates several files into one and removes them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use crate::files::write::{Written, create};
use crate::files::{failed, find_user, in_background, not_regular, resolve};
use crate::http::{HttpError, Reply, json_reply, read_json};
use crate::rights::on_behalf_of;
use crate::settings::Settings;
use crate::users::User;

#[derive(Debug, Deserialize)]
struct ComposeRequest {
    #[serde(default)]
    source_paths: Vec<String>,
    #[serde(default)]
    destination: String,
    username: Option<String>,
}

pub(crate) async fn compose(settings: &Settings, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let bad = |message: &str| Err(HttpError::new(StatusCode::BAD_REQUEST, message));
    let request: ComposeRequest = read_json(request).await?;
    if request.source_paths.is_empty() {
        return bad("source_paths must not be empty");
    }
    if request.destination.is_empty() {
        return bad("destination is required");
    }
    let user = find_user(settings, request.username.as_deref())?;
    let destination = resolve(settings, &user, &request.destination)?;
    let mut sources = Vec::new();
    for source in request.source_paths {
        let path = resolve(settings, &user, &source)?;
        if path == destination {
            return bad(&format!("source path \"{source}\" cannot be the same as destination"));
        }
        sources.push((source, path));
    }
    let written = in_background(move || on_behalf_of(&user, || concatenate(&sources, destination.clone(), &user)));
    written.await.map(|written| json_reply(&written))
}

fn concatenate(sources: &[(String, PathBuf)], destination: PathBuf, user: &User) -> Result<Written, HttpError> {
    for (name, path) in sources {
        let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => failed("error opening source file", path, &error),
            _ => HttpError::new(StatusCode::NOT_FOUND, format!("source file not found: {name}")),
        })?;
        if !meta.is_file() {
            let message = format!("source path is not a regular file: {name}");
            return Err(HttpError::new(StatusCode::BAD_REQUEST, message));
        }
    }
    // Write to a temporary file next to the destination first. If something fails, the destination stays as it was.
    let staging = staging_path(&destination);
    let mut target = create(&staging, user, &Default::default())?;
    let filled = fill(&mut target, sources).and_then(|()| {
        std::fs::rename(&staging, &destination).map_err(|e| failed("error finalizing", &destination, &e))
    });
    if let Err(error) = filled {
        let _ = std::fs::remove_file(&staging);
        return Err(error);
    }
    for (_, path) in sources {
        let _ = std::fs::remove_file(path);
    }
    Ok(Written::new(destination, Default::default()))
}

fn fill(target: &mut File, sources: &[(String, PathBuf)]) -> Result<(), HttpError> {
    for (_, path) in sources {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
        let mut source = File::from(opened.map_err(|error| failed("error opening source file", path, &error))?);
        // Check again: it may have been replaced since.
        if !source.metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(not_regular(path));
        }
        io::copy(&mut source, target).map_err(|error| failed("error composing source", path, &error))?;
    }
    Ok(())
}

fn staging_path(destination: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = destination.as_os_str().to_owned();
    name.push(format!(".e2b-compose.{}.tmp", COUNT.fetch_add(1, Ordering::Relaxed)));
    name.into()
}
