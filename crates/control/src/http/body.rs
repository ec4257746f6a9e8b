//! Reading requests: JSON bodies of bounded size and query strings, both strict about what they do not know.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts};
use http::request::Parts;
use http::{HeaderMap, Request, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use crate::app::App;
use crate::query;

/// A JSON body, or `{}` where there is none.
pub(super) struct JsonBody(pub(super) Value);

/// A query string: each key once.
pub(super) struct Query(Vec<(String, String)>);

impl JsonBody {
    /// The body as a type. Fields that the type does not know are refused: nothing is accepted and ignored.
    pub(super) fn parse<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        serde_json::from_value(self.0).map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))
    }
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = to_bytes(body, app.max_body).await.map_err(|error| read_error(&error, app.max_body))?;
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

fn read_error(error: &axum::Error, limit: usize) -> ApiError {
    let causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source());
    let too_large = causes.into_iter().any(|error| error.is::<http_body_util::LengthLimitError>());
    if too_large { ApiError::too_large(limit) } else { ApiError::bad_request("the request body could not be read") }
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

impl FromRequestParts<Arc<App>> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, ApiError> {
        Ok(Self(query::pairs(parts.uri.query().unwrap_or_default())))
    }
}

impl Query {
    /// Refuses keys that the route does not know: a filter that is ignored gives wrong answers.
    pub(super) fn only(self, known: &[&str]) -> Result<Self, ApiError> {
        match self.0.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            Some((key, _)) => Err(ApiError::bad_request(format!("unknown query parameter {key:?}"))),
            None => Ok(self),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    /// All values of a key that may be given several times, as they are.
    pub(super) fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a list: given several times, joined by commas, or both.
    pub(super) fn list<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        let given = self.0.iter().filter(move |(key, _)| key == name);
        given.flat_map(|(_, value)| value.split(',')).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let wrong = || ApiError::bad_request(format!("{name} must be a number between {least} and {most}"));
        number.map(Some).ok_or_else(wrong)
    }
}
