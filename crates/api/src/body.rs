//! Reads requests: JSON bodies of limited size and query strings. Our own APIs refuse unknown fields, and E2B's API
//! ignores them.

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
use crate::stalled::BodyTimeout;

/// A JSON body to be parsed as a `T`, or `{}` if the body is empty.
#[derive(Debug)]
pub struct JsonBody<T>(pub Value, PhantomData<fn() -> T>);

/// A tar archive as the body. The handler reads it.
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

/// The maximum size of an API request's body. Every request has it.
#[derive(Clone, Copy, Debug)]
pub struct MaxBody(pub usize);

impl MaxBody {
    /// Without a limit, nothing may be read.
    pub fn of(parts: &Parts) -> usize {
        parts.extensions.get::<Self>().map_or(0, |limit| limit.0)
    }
}

/// A query string with the parameters of `P`.
#[derive(Debug)]
pub struct Query<P>(Vec<(String, String)>, PhantomData<fn() -> P>);

impl<T: DeserializeOwned> JsonBody<T> {
    /// Parses the body. Types of our own APIs refuse unknown fields (`deny_unknown_fields`), and types of E2B's API
    /// ignore them.
    pub fn parse(self) -> Result<T, ApiError> {
        let (read, ignored) = lenient::from_value(self.0).map_err(|error| invalid(&error))?;
        if !ignored.is_empty() {
            tracing::debug!(fields = ?ignored, "ignored unknown fields");
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
    body_error(error, ApiError::bad_request("could not read the request body"))
}

/// Returns the error for an incomplete body: a timeout if the client stopped sending, otherwise `broken`.
pub fn body_error(error: &(dyn std::error::Error + 'static), broken: impl Into<ApiError>) -> ApiError {
    if is_caused_by::<BodyTimeout>(error) { ApiError::stalled() } else { broken.into() }
}

fn is_caused_by<T: std::error::Error + 'static>(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<T>())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json")
}

/// Compressed bodies are refused, because they would not parse. No known client compresses them.
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
            Some(_) => tracing::debug!(parameters = ?names, "ignored unknown query parameters"),
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

    /// Returns all values of a parameter that may be repeated, unchanged.
    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a list, whose parameter may be repeated, separated by commas, or both.
    pub fn list<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        let given = self.0.iter().filter(move |(key, _)| key == name);
        given.flat_map(|(_, value)| value.split(',')).filter(|value| !value.is_empty())
    }

    /// Returns a number within the declared bounds.
    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let range = declared::<P>(name).and_then(Param::range);
        debug_assert!(range.is_some(), "{name} is not declared as a number");
        let (least, most) = range.unwrap_or((i64::MIN, i64::MAX));
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let wrong = || ApiError::bad_request(format!("{name} must be a number between {least} and {most}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Parses `true` or `false`. The default is false.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::bad_request(format!("{name} must be true or false"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use futures::FutureExt as _;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(Deserialize)]
    struct Named {
        name: String,
    }

    enum Paged {}

    impl QueryParams for Paged {
        const IGNORES_UNKNOWN: bool = true;
        const PARAMS: &'static [Param] = &[Param::number("limit", 1, 10)];
    }

    /// What is logged at a level.
    fn logged(level: tracing::Level, work: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || writer.clone());
        tracing::subscriber::with_default(log.finish(), work);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn read(body: Value) {
        assert_eq!(JsonBody::<Named>(body, PhantomData).parse().unwrap().name, "web");
    }

    fn query(text: &str) {
        let (mut parts, ()) = Request::builder().uri(format!("/?{text}")).body(()).unwrap().into_parts();
        let read = Query::<Paged>::from_request_parts(&mut parts, &()).now_or_never();
        let query = read.expect("it waits for nothing").unwrap();
        assert_eq!(query.number("limit").unwrap(), Some(5));
    }

    #[test]
    fn a_debug_line_names_what_was_ignored_and_not_its_value() {
        let text = logged(tracing::Level::DEBUG, || {
            read(json!({ "name": "web" }));
            read(json!({ "name": "web", "later": "s3cret", "more": { "deep": 1 } }));
            query("limit=5");
            query("limit=5&soon=s3cret");
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("DEBUG") && lines[0].contains("ignored unknown fields"), "{text}");
        assert!(lines[0].contains(r#"["later", "more"]"#), "{text}");
        assert!(lines[1].contains("DEBUG") && lines[1].contains("ignored unknown query parameters"), "{text}");
        assert!(lines[1].contains(r#"["soon"]"#) && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn the_usual_log_does_not_have_that_line() {
        assert_eq!(logged(tracing::Level::INFO, || read(json!({ "name": "web", "later": 1 }))), "");
    }
}
