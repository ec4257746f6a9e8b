//! Reading requests: JSON bodies of bounded size and query strings. Our own APIs refuse what they do not know; E2B's
//! ignores it.

use std::convert::Infallible;
use std::marker::PhantomData;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts};
use http::request::Parts;
use http::{HeaderMap, Request, header};
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::path::ParameterIn;

use crate::describe::{DescribeInput, Description};
use crate::error::ApiError;
use crate::lenient;
use crate::params::{Param, QueryParams};
use crate::query;
use crate::stalled::BodyStalled;

/// A JSON body that is to be a `T`, or `{}` where there is none.
#[derive(Debug)]
pub struct JsonBody<T>(pub Value, PhantomData<fn() -> T>);

/// A tar archive as the body, which the handler reads.
#[derive(Debug)]
pub struct Archive(pub Body);

impl<S: Sync> FromRequest<S> for Archive {
    type Rejection = Infallible;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, Infallible> {
        Ok(Self(request.into_body()))
    }
}

impl DescribeInput for Archive {
    fn describe(operation: &mut Description) {
        operation.raw_body("application/x-tar");
    }
}

/// How large the body of an API request may be. Every request carries it.
#[derive(Clone, Copy, Debug)]
pub struct MaxBody(pub usize);

impl MaxBody {
    /// Nothing may be read where nobody said how much.
    pub fn of(parts: &Parts) -> usize {
        parts.extensions.get::<Self>().map_or(0, |limit| limit.0)
    }
}

/// A query string with the parameters of `P`, and no others.
#[derive(Debug)]
pub struct Query<P>(Vec<(String, String)>, PhantomData<fn() -> P>);

impl<T: DeserializeOwned> JsonBody<T> {
    /// The body as its type. Types of our own APIs refuse fields that they do not know (`deny_unknown_fields`); those of
    /// E2B's API ignore them.
    pub fn parse(self) -> Result<T, ApiError> {
        let (read, ignored) = lenient::from_value(self.0).map_err(|error| invalid(&error))?;
        if !ignored.is_empty() {
            tracing::debug!(fields = ?ignored, "ignored fields that are not known here");
        }
        Ok(read)
    }
}

impl<T: ToSchema> DescribeInput for JsonBody<T> {
    fn describe(operation: &mut Description) {
        operation.json_body::<T>();
    }
}

impl<S: Sync, T> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let limit = MaxBody::of(&parts);
        let bytes = to_bytes(body, limit).await.map_err(|error| read_error(&error, limit))?;
        if bytes.is_empty() {
            return Ok(Self(Value::Object(serde_json::Map::new()), PhantomData));
        }
        if !is_json(&parts.headers) || is_encoded(&parts.headers) {
            return Err(ApiError::wrong_type());
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad_request(format!("the request body is not JSON: {error}")))?;
        Ok(Self(value, PhantomData))
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

impl<P: QueryParams> DescribeInput for Query<P> {
    fn describe(operation: &mut Description) {
        for parameter in P::PARAMS {
            operation.parameter(ParameterIn::Query, parameter);
        }
        operation.may_refuse(&[400]);
    }
}

impl<S: Sync, P: QueryParams> FromRequestParts<S> for Query<P> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let pairs = query::pairs(parts.uri.query().unwrap_or_default());
        let (known, unknown): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(key, _)| declared::<P>(key).is_some());
        let names: Vec<&str> = unknown.iter().map(|(key, _)| key.as_str()).take(lenient::MAX_NAMED).collect();
        match names.first() {
            Some(key) if !P::IGNORES_UNKNOWN => {
                return Err(ApiError::bad_request(format!("unknown query parameter {key:?}")));
            }
            Some(_) => tracing::debug!(parameters = ?names, "ignored query parameters that are not known here"),
            None => {}
        }
        Ok(Self(known, PhantomData))
    }
}

fn declared<P: QueryParams>(name: &str) -> Option<&'static Param> {
    P::PARAMS.iter().find(|parameter| parameter.name() == name)
}

impl<P: QueryParams> Query<P> {
    pub fn text(&self, name: &str) -> Option<&str> {
        debug_assert!(declared::<P>(name).is_some(), "{name} is not declared");
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

    /// A number within the bounds that its declaration names.
    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let range = declared::<P>(name).and_then(Param::range);
        debug_assert!(range.is_some(), "{name} is not declared as a number");
        let (least, most) = range.unwrap_or((i64::MIN, i64::MAX));
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let wrong = || ApiError::bad_request(format!("{name} must be a number between {least} and {most}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// `true` or `false`; not given means false.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::bad_request(format!("{name} must be true or false"))),
        }
    }
}
