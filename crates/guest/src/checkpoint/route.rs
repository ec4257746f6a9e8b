//! The routes of checkpoints. All are for the host only.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use isopod_wire::checkpoint::{
    FILES_PATH, HOLD_PATH, IDENTITY_PATH, RELEASE_PATH, RESTORE_FILES_PATH, RESTORE_FINISH_PATH, RESTORE_PATH,
    STATE_PATH,
};

use crate::checkpoint::{Checkpoint, files, finish, hold, identity, release, restore, state};
use crate::http::{HttpError, Query, Reply, check_host};

const ALL: [&str; 8] = [
    HOLD_PATH,
    STATE_PATH,
    FILES_PATH,
    RELEASE_PATH,
    RESTORE_FILES_PATH,
    RESTORE_PATH,
    RESTORE_FINISH_PATH,
    IDENTITY_PATH,
];

pub(crate) fn has_route(path: &str) -> bool {
    ALL.contains(&path)
}

pub(crate) async fn answer(checkpoint: &Checkpoint, request: Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(&request)?;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match (&method, path.as_str()) {
        (&Method::POST, HOLD_PATH) => hold::hold(checkpoint).await,
        (&Method::POST, STATE_PATH) => state::state(checkpoint).await,
        (&Method::GET, FILES_PATH) => files::save(checkpoint).await,
        (&Method::POST, RELEASE_PATH) => release::release(checkpoint).await,
        (&Method::PUT, RESTORE_FILES_PATH) => files::restore(checkpoint, request).await,
        (&Method::POST, RESTORE_PATH) => restore::restore(checkpoint, request).await,
        (&Method::POST, RESTORE_FINISH_PATH) => {
            let query = Query::parse(request.uri().query());
            let is_set = |name: &str| query.get(name) == Some("true");
            finish::finish(checkpoint, is_set("copy"), is_set("log")).await
        }
        (&Method::POST, IDENTITY_PATH) => identity::identity(Query::parse(request.uri().query()).get("name")).await,
        _ => Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not possible on {path}"))),
    }
}
