//! Reading requests: JSON bodies of bounded size and query strings. Our own APIs refuse what they do not know; E2B's
//! ignores it.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts};
use http::request::Parts;
use http::{HeaderMap, Request, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use super::lenient;
use crate::query;
use crate::stalled::BodyStalled;

/// A JSON body, or `{}` where there is none.
#[derive(Debug)]
pub struct JsonBody(pub Value);

/// How large the body of an API request may be. Every request carries it.
#[derive(Clone, Copy, Debug)]
pub struct MaxBody(pub usize);

impl MaxBody {
    /// Nothing may be read where nobody said how much.
    pub fn of(parts: &Parts) -> usize {
        parts.extensions.get::<Self>().map_or(0, |limit| limit.0)
    }
}

/// A query string: each key once.
#[derive(Debug)]
pub struct Query(Vec<(String, String)>);

impl JsonBody {
    /// The body as a type of our own APIs, which refuses fields that it does not know.
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        serde_json::from_value(self.0).map_err(|error| invalid(&error))
    }

    /// The body as a type of E2B's API. Fields that the type does not have are ignored.
    pub(super) fn parse_lenient<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        let (read, ignored) = lenient::from_value(self.0).map_err(|error| invalid(&error))?;
        if !ignored.is_empty() {
            tracing::debug!(fields = ?ignored, "ignored fields that are not known here");
        }
        Ok(read)
    }
}

impl<S: Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let limit = MaxBody::of(&parts);
        let bytes = to_bytes(body, limit).await.map_err(|error| read_error(&error, limit))?;
        if bytes.is_empty() {
            return Ok(Self(Value::Object(serde_json::Map::new())));
        }
        if !is_json(&parts.headers) || is_encoded(&parts.headers) {
            return Err(ApiError::wrong_type());
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad_request(format!("the request body is not JSON: {error}")))?;
        Ok(Self(value))
    }
}

fn invalid(error: &serde_json::Error) -> ApiError {
    ApiError::bad_request(format!("invalid request body: {error}"))
}

fn read_error(error: &axum::Error, limit: usize) -> ApiError {
    if is_caused_by::<http_body_util::LengthLimitError>(error) {
        return ApiError::too_large(limit);
    }
    body_error(error, ApiError::bad_request("the request body could not be read"))
}

/// A body that did not come to its end: its client went silent, or else `broken`.
pub fn body_error(error: &(dyn std::error::Error + 'static), broken: impl Into<ApiError>) -> ApiError {
    if is_caused_by::<BodyStalled>(error) { ApiError::stalled() } else { broken.into() }
}

fn is_caused_by<T: std::error::Error + 'static>(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<T>())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json")
}

/// No client of ours compresses what it sends; taken as it is it would be nonsense.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self(query::pairs(parts.uri.query().unwrap_or_default())))
    }
}

impl Query {
    /// Refuses keys that the route does not know: a filter that is ignored gives wrong answers.
    pub fn only(self, known: &[&str]) -> Result<Self, ApiError> {
        match self.0.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            Some((key, _)) => Err(ApiError::bad_request(format!("unknown query parameter {key:?}"))),
            None => Ok(self),
        }
    }

    /// Leaves out keys that a route of E2B's API does not know.
    pub(super) fn known(self, known: &[&str]) -> Self {
        let (kept, ignored): (Vec<_>, Vec<_>) = self.0.into_iter().partition(|(key, _)| known.contains(&key.as_str()));
        if !ignored.is_empty() {
            let names: Vec<&str> = ignored.iter().map(|(key, _)| key.as_str()).take(lenient::MAX_NAMED).collect();
            tracing::debug!(parameters = ?names, "ignored query parameters that are not known here");
        }
        Self(kept)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    /// All values of a key that may be given several times, as they are.
    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a list: given several times, joined by commas, or both.
    pub fn list<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        let given = self.0.iter().filter(move |(key, _)| key == name);
        given.flat_map(|(_, value)| value.split(',')).filter(|value| !value.is_empty())
    }

    pub fn number(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let wrong = || ApiError::bad_request(format!("{name} must be a number between {least} and {most}"));
        number.map(Some).ok_or_else(wrong)
    }
}
