//! `/api/v1/executions/{id}/files`: single files of an execution, by key.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use isopod_api::{
    ApiError, Caller, Created, DescribeInput, Description, Download, Empty, Headers, Listing, NoContent, Param, Query,
    QueryParams,
};
use isopod_control::http::{expected_size, receive, send};
use isopod_files::{Key, KeyQuery, ListedFile, Metadata, Opened, blocking};
use isopod_store::clock::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::executions::{claimed_files, known_files};
use crate::Agents;

/// The metadata of a file, as a JSON object.
const METADATA_HEADER: &str = "x-isopod-metadata";
const MODIFIED_HEADER: &str = "x-isopod-modified-at";
const MAX_LISTED: i64 = 10_000;

pub(super) enum ListFiles {}

impl QueryParams for ListFiles {
    const PARAMS: &'static [Param] = &[
        Param::text("prefix"),
        Param::time("modifiedSince"),
        Param::number("limit", 1, MAX_LISTED),
        Param::text("nextToken").about("where to go on, from the header x-next-token of the page before"),
    ];
}

/// What a client records with a file.
pub(super) struct FileMetadata(Option<Metadata>);

impl<S: Sync> FromRequestParts<S> for FileMetadata {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        metadata_of(&parts.headers).map(Self)
    }
}

impl DescribeInput for FileMetadata {
    fn describe(operation: &mut Description) {
        operation.header(&Param::text("X-Isopod-Metadata").about("a JSON object that is kept with the file"));
    }
}

/// A file that was written.
#[derive(Serialize, ToSchema)]
#[schema(as = PutFile)]
pub(super) struct Put {
    key: String,
    /// Where sandboxes have it.
    path: String,
    size: u64,
}

pub(super) async fn put(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, key)): Path<(String, String)>,
    FileMetadata(metadata): FileMetadata,
    headers: HeaderMap,
    body: Body,
) -> Result<Created<Put>, ApiError> {
    let key = Key::parse_new(&key)?;
    let expected = expected_size(&headers);
    let files = claimed_files(&app, &caller, &id).await?;
    let (shown, path) = (key.as_str().to_owned(), format!("{}/{}", files.root_path(), key.as_str()));
    let size = receive(body, move || files.begin_put(key, metadata, expected)).await?;
    Ok(Created(Put { key: shown, path, size }))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, key)): Path<(String, String)>,
) -> Result<Download, ApiError> {
    let opened = open(&app, &caller, &id, &key).await?;
    let headers = head_of(&opened);
    Ok(Download((headers, send(opened.file)).into_response()))
}

pub(super) async fn head(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, key)): Path<(String, String)>,
) -> Result<Headers, ApiError> {
    let opened = open(&app, &caller, &id, &key).await?;
    Ok(Headers((head_of(&opened), Body::empty()).into_response()))
}

async fn open(app: &Agents, caller: &Caller, id: &str, key: &str) -> Result<Opened, ApiError> {
    let key = Key::parse(key)?;
    let files = known_files(app, caller, id).await?;
    Ok(blocking(move || files.open(&key)).await?)
}

pub(super) async fn delete(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, key)): Path<(String, String)>,
) -> Result<NoContent, ApiError> {
    let key = Key::parse(&key)?;
    let files = known_files(&app, &caller, &id).await?;
    blocking(move || files.delete(&key)).await?;
    Ok(Empty)
}

/// The keys in order. The header `x-next-token` has the token for the next page.
pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<ListFiles>,
) -> Result<(HeaderMap, Listing<ListedFile>), ApiError> {
    let limit = query.number("limit")?.unwrap_or(MAX_LISTED);
    let wanted = KeyQuery {
        prefix: query.text("prefix").unwrap_or_default().to_owned(),
        modified_since: query.text("modifiedSince").map(parse_time).transpose()?,
        after: query.text("nextToken").map(parse_token).transpose()?,
        limit: usize::try_from(limit).unwrap_or(1),
    };
    let files = known_files(&app, &caller, &id).await?;
    let (listed, has_more) = blocking(move || files.list(&wanted)).await?;
    let mut headers = HeaderMap::new();
    if let Some(last) = listed.last().filter(|_| has_more) {
        let token = URL_SAFE_NO_PAD.encode(&last.key);
        headers.insert("x-next-token", HeaderValue::try_from(token).expect("base64 is a valid header value"));
    }
    Ok((headers, Listing(listed)))
}

fn parse_token(text: &str) -> Result<String, ApiError> {
    let key = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    key.ok_or_else(|| ApiError::bad_request("nextToken is not a token from this server"))
}

fn parse_time(text: &str) -> Result<Timestamp, ApiError> {
    Timestamp::parse_rfc3339(text).ok_or_else(|| ApiError::bad_request("modifiedSince must be an RFC 3339 time"))
}

fn metadata_of(headers: &HeaderMap) -> Result<Option<Metadata>, ApiError> {
    let Some(text) = headers.get(METADATA_HEADER) else { return Ok(None) };
    let wrong = || ApiError::bad_request("X-Isopod-Metadata must be a JSON object of at most 16 KiB");
    Metadata::parse(text.as_bytes()).map(Some).ok_or_else(wrong)
}

fn head_of(opened: &Opened) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // Files from a sandbox must never run as a page of this origin.
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(opened.size));
    let texts = [
        (MODIFIED_HEADER, Some(Timestamp(opened.modified_ms).to_rfc3339())),
        (METADATA_HEADER, opened.metadata.as_ref().map(Metadata::to_ascii)),
    ];
    for (name, text) in texts {
        if let Some(Ok(value)) = text.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
    headers
}
