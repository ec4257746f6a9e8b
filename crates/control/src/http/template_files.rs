//! Files for builds: `GET /templates/{id}/files/{hash}` returns a link for uploading them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use http::request::Parts;
use isopod_api::{ApiError, Caller, Created, Empty, scheme_of};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use crate::edge::host_of;
use crate::templates::is_files_hash;

/// An upload link.
#[derive(Serialize, ToSchema)]
#[schema(as = UploadLink)]
pub(super) struct Link {
    /// Whether the files already exist.
    present: bool,
    url: String,
}

/// Returns the link even if the files exist, because a client may upload them again.
pub(super) async fn link(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, hash)): Path<(String, String)>,
    parts: Parts,
) -> Result<Created<Link>, ApiError> {
    let (template, _) = app.catalogue.find_built(&caller.team, &id).await?;
    if !is_files_hash(&hash) {
        return Err(ApiError::bad_request("the hash must have 64 hexadecimal digits"));
    }
    let present = app.catalogue.store.touch_template_file(&template.team, &hash).await?;
    let token = app.catalogue.uploads.new_link(&template.team, &hash);
    let host = host_of(&parts).ok_or_else(|| ApiError::bad_request("the request has no Host"))?;
    let url = format!("{}://{host}/isopod/uploads/{token}", scheme_of(&parts));
    Ok(Created(Link { present, url }))
}

/// `PUT /isopod/uploads/{token}`: needs only the token, which works once.
pub(super) async fn upload(
    State(app): State<Arc<App>>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Empty<200>, ApiError> {
    let link = app.catalogue.uploads.use_link(&token);
    let (team, hash) = link.ok_or_else(|| ApiError::forbidden("this link is invalid, expired or already used"))?;
    app.catalogue.uploads.receive(&app.catalogue.store, &team, &hash, body).await?;
    Ok(Empty)
}
