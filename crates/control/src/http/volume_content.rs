//! `/volumecontent/{id}/{path,dir,file}`: the content of a volume, for requests with its token.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, RawPathParams, State};
use axum::response::IntoResponse as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use isopod_api::{
    ApiError, Created, DescribeInput, Description, Download, Empty, JsonBody, Listing, NoContent, Param, Query,
    QueryParams, VOLUME_TOKEN,
};
use isopod_store::secrets::same;
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::file_bodies::file_store;
use super::file_bodies::{expected_size, receive, send};
use isopod_files::{EntryStat, FileError, InnerPath, Ownership, VolumeFiles, blocking};

/// A volume whose token the request has.
pub(super) struct OpenVolume {
    files: Arc<VolumeFiles>,
}

impl FromRequestParts<Arc<App>> for OpenVolume {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let refused =
            || ApiError::unauthorized("the volume's token is missing or wrong; send it as Authorization: Bearer");
        let given = bearer(&parts.headers).ok_or_else(refused)?.to_owned();
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_| refused())?;
        let id = params.iter().find(|(name, _)| *name == "id").map(|(_, id)| id.to_owned()).ok_or_else(refused)?;
        let volume = app.fleet.store.find_any_volume(&id).await?.ok_or_else(refused)?;
        if !same(given.as_bytes(), volume.token.0.as_bytes()) {
            return Err(refused());
        }
        Ok(Self { files: Arc::new(file_store(app.files.as_ref())?.volume(&volume.id).await?) })
    }
}

impl DescribeInput for OpenVolume {
    fn describe(operation: &mut Description) {
        operation.opened_by(VOLUME_TOKEN);
    }
}

pub(super) enum AtPath {}

impl QueryParams for AtPath {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[PATH];
}

pub(super) enum ListDir {}

impl QueryParams for ListDir {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[PATH, Param::number("depth", 1, 100)];
}

pub(super) enum NewEntry {}

impl QueryParams for NewEntry {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        PATH,
        Param::number("uid", 0, u32::MAX as i64 - 1),
        Param::number("gid", 0, u32::MAX as i64 - 1),
        Param::number("mode", 0, MAX_MODE as i64),
        Param::flag("force"),
    ];
}

const PATH: Param = Param::text("path").required();
/// The nine permission bits. Files in a volume cannot have setuid or setgid bits.
const MAX_MODE: u32 = 0o777;

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

pub(super) async fn stat(volume: OpenVolume, query: Query<AtPath>) -> Result<Json<EntryStat>, ApiError> {
    let path = path_of(&query)?;
    Ok(Json(blocking(move || volume.files.stat(&path)).await?))
}

/// The attributes to change.
#[derive(Deserialize, ToSchema)]
#[schema(as = VolumeEntryChange)]
pub(super) struct ChangeBody {
    uid: Option<u32>,
    gid: Option<u32>,
    #[schema(maximum = 511)]
    mode: Option<u32>,
}

pub(super) async fn change(
    volume: OpenVolume,
    query: Query<AtPath>,
    body: JsonBody<ChangeBody>,
) -> Result<Json<EntryStat>, ApiError> {
    let path = path_of(&query)?;
    let ChangeBody { uid, gid, mode } = body.parse()?;
    let ownership = Ownership { uid, gid, mode: mode.map(checked_mode).transpose()? };
    Ok(Json(blocking(move || volume.files.change(&path, ownership)).await?))
}

pub(super) async fn remove(volume: OpenVolume, query: Query<AtPath>) -> Result<NoContent, ApiError> {
    let path = path_of(&query)?;
    blocking(move || volume.files.remove(&path)).await?;
    Ok(Empty)
}

pub(super) async fn list(volume: OpenVolume, query: Query<ListDir>) -> Result<Listing<EntryStat>, ApiError> {
    let path = path_of(&query)?;
    let depth = query.number("depth")?.unwrap_or(1);
    let depth = usize::try_from(depth).unwrap_or(1);
    Ok(Listing(blocking(move || volume.files.list(&path, depth)).await?))
}

pub(super) async fn make_dir(volume: OpenVolume, query: Query<NewEntry>) -> Result<Created<EntryStat>, ApiError> {
    let (path, ownership, force) = entry_of(&query)?;
    let made = blocking(move || volume.files.make_dir(&path, ownership, force)).await?;
    Ok(Created(made))
}

pub(super) async fn read(volume: OpenVolume, query: Query<AtPath>) -> Result<Download, ApiError> {
    let path = path_of(&query)?;
    let (file, size) = blocking(move || volume.files.open(&path)).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_LENGTH, HeaderValue::from(size)),
    ];
    Ok(Download((headers, send(file)).into_response()))
}

pub(super) async fn write(
    State(app): State<Arc<App>>,
    volume: OpenVolume,
    Path(_id): Path<String>,
    query: Query<NewEntry>,
    headers: HeaderMap,
    body: Body,
) -> Result<Created<EntryStat>, ApiError> {
    let (path, ownership, force) = entry_of(&query)?;
    let limit = file_store(app.files.as_ref())?.volume_file_limit();
    if expected_size(&headers).is_some_and(|size| size > limit) {
        return Err(FileError::TooLarge(limit).into());
    }
    let written = receive(body, move || volume.files.begin_put(path, ownership, force, limit)).await?;
    Ok(Created(written))
}

fn entry_of(query: &Query<NewEntry>) -> Result<(InnerPath, Ownership, bool), ApiError> {
    let number = |name| Ok::<_, ApiError>(query.number(name)?.and_then(|number| u32::try_from(number).ok()));
    let force = match query.text("force") {
        None => false,
        Some("true" | "True" | "1") => true,
        Some("false" | "False" | "0") => false,
        Some(_) => return Err(ApiError::bad_request("force must be true or false")),
    };
    Ok((path_of(query)?, Ownership { uid: number("uid")?, gid: number("gid")?, mode: number("mode")? }, force))
}

fn path_of<P: QueryParams>(query: &Query<P>) -> Result<InnerPath, ApiError> {
    let path = query.text("path").ok_or_else(|| ApiError::bad_request("path is required"))?;
    Ok(InnerPath::parse(path).map_err(FileError::from)?)
}

fn checked_mode(mode: u32) -> Result<u32, ApiError> {
    if mode <= MAX_MODE {
        Ok(mode)
    } else {
        Err(ApiError::bad_request("mode must be at most 511 (the nine permission bits)"))
    }
}
