//! Authentication: anonymous, with a user name and a password, or with a token from a token service.

use std::fmt;

use base64::Engine as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use isopod_outbound::{Policy, ResponseBody, collect};
use serde::Deserialize;

use super::http::{Dialer, is_internal};
use super::{IDLE_TIMEOUT, Place, PullError};

/// The number of redirects to follow from a registry to the location of its blobs.
pub(super) const MAX_REDIRECTS: usize = 5;
const MAX_TOKEN: usize = 1 << 20;
/// Docker's registry has another host name than the one that images use.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    /// The password or token.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    fn header(&self) -> HeaderValue {
        let text = base64::engine::general_purpose::STANDARD.encode(format!("{}:{}", self.username, self.password));
        let mut value = HeaderValue::try_from(format!("Basic {text}")).expect("base64 is valid in a header");
        value.set_sensitive(true);
        value
    }
}

/// Requests to one location of an image.
pub(super) struct Session<'a> {
    pub(super) place: &'a Place,
    credentials: Option<&'a Credentials>,
    dialer: Dialer,
    base: String,
    authorization: Option<HeaderValue>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        place: &'a Place,
        credentials: Option<&'a Credentials>,
        policy: &Policy,
    ) -> Result<Self, PullError> {
        let registry = place.reference.registry();
        let host = if registry == DOCKER.0 { DOCKER.1 } else { registry };
        let scheme = if place.plain { "http" } else { "https" };
        let base = format!("{scheme}://{host}/v2/{}", place.reference.repository());
        let dialer = match place.is_named {
            true => Dialer::with_place(policy.clone(), host, place.plain),
            false => Dialer::new(policy.clone()),
        };
        Ok(Self { place, credentials, dialer, base, authorization: None })
    }

    /// Requests a path below the repository, and authenticates if the registry asks for it.
    pub(super) async fn get(&mut self, path: &str, headers: HeaderMap) -> Result<Response<ResponseBody>, PullError> {
        let uri = format!("{}/{path}", self.base);
        let reply = self.follow(&uri, &headers).await?;
        let reply = match reply.status() {
            StatusCode::UNAUTHORIZED if self.sign_in(&reply).await? => self.follow(&uri, &headers).await?,
            _ => reply,
        };
        let registry = self.place.reference.registry().to_owned();
        match reply.status() {
            status if status.is_success() => Ok(reply),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PullError::Denied(registry)),
            StatusCode::NOT_FOUND => Err(PullError::NotFound(self.place.reference.to_string())),
            status => Err(self.nonsense(format!("status {status}"))),
        }
    }

    async fn follow(&self, uri: &str, headers: &HeaderMap) -> Result<Response<ResponseBody>, PullError> {
        let mut uri: Uri = uri.parse().map_err(|_| self.nonsense(format!("the invalid address {uri}")))?;
        let first = uri.authority().cloned();
        for _ in 0..MAX_REDIRECTS {
            let mut headers = headers.clone();
            // Never send the credentials to another host.
            if uri.authority() == first.as_ref() {
                headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
            }
            let reply = self.dialer.get(&uri, headers).await.map_err(|error| self.dial_failed(error))?;
            if !reply.status().is_redirection() {
                return Ok(reply);
            }
            let location = reply.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
            uri = join(&uri, location).ok_or_else(|| self.nonsense(format!("a bad redirect to {location:?}")))?;
        }
        Err(self.nonsense("too many redirects".to_owned()))
    }

    /// Returns false if there is no method to try.
    async fn sign_in(&mut self, reply: &Response<ResponseBody>) -> Result<bool, PullError> {
        let challenges = reply.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        for challenge in challenges.map(str::to_owned).collect::<Vec<_>>() {
            let (scheme, fields) = challenge.split_once(' ').unwrap_or((&challenge, ""));
            if scheme.eq_ignore_ascii_case("basic") {
                self.authorization = self.credentials.map(Credentials::header);
                return Ok(self.authorization.is_some());
            }
            if scheme.eq_ignore_ascii_case("bearer") {
                self.authorization = Some(self.token(fields).await?);
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn token(&self, fields: &str) -> Result<HeaderValue, PullError> {
        #[derive(Deserialize)]
        struct Token {
            #[serde(alias = "access_token")]
            token: String,
        }
        let field = |name: &str| field(fields, name);
        let realm =
            field("realm").ok_or_else(|| self.nonsense("an authentication challenge without a realm".to_owned()))?;
        let scope = field("scope").unwrap_or_else(|| format!("repository:{}:pull", self.place.reference.repository()));
        let service = field("service").unwrap_or_default();
        let uri = format!("{realm}?service={}&scope={}", encode(&service), encode(&scope));
        let uri: Uri = uri.parse().map_err(|_| self.nonsense(format!("the invalid realm {realm:?}")))?;
        // A password goes over an unencrypted connection only if the settings allow that for the registry.
        let may_send = uri.scheme_str() == Some("https") || self.place.plain;
        let mut headers = HeaderMap::new();
        if let Some(credentials) = self.credentials.filter(|_| may_send) {
            headers.insert(AUTHORIZATION, credentials.header());
        }
        let reply = self.dialer.get(&uri, headers).await.map_err(|error| self.dial_failed(error))?;
        if !reply.status().is_success() {
            return Err(PullError::Denied(self.place.reference.registry().to_owned()));
        }
        let bytes = self.read_whole(reply, MAX_TOKEN).await?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| self.nonsense("no valid token".to_owned()))?;
        let value = HeaderValue::try_from(format!("Bearer {}", token.token));
        let mut value = value.map_err(|_| self.nonsense("a token that is not valid in a header".to_owned()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Reads the body of a response. More than `limit` bytes are an error.
    pub(super) async fn read_whole(&self, reply: Response<ResponseBody>, limit: usize) -> Result<Bytes, PullError> {
        let read = tokio::time::timeout(IDLE_TIMEOUT, collect(reply.into_body(), limit)).await;
        let read = read.map_err(|_| self.unreachable("it stopped sending".to_owned()))?;
        read.map_err(|error| self.unreachable(error.to_string()))
    }

    fn dial_failed(&self, error: std::io::Error) -> PullError {
        if is_internal(&error) {
            return PullError::Internal(self.place.reference.registry().to_owned());
        }
        self.unreachable(error.to_string())
    }

    pub(super) fn unreachable(&self, reason: String) -> PullError {
        PullError::Unreachable { registry: self.place.reference.registry().to_owned(), reason }
    }

    pub(super) fn nonsense(&self, what: String) -> PullError {
        PullError::Answer { registry: self.place.reference.registry().to_owned(), what }
    }
}

pub(super) fn join(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        return format!("{}://{}{location}", base.scheme_str()?, base.authority()?).parse().ok();
    }
    // Never go from an encrypted to an unencrypted connection.
    let uri: Uri = location.parse().ok()?;
    (uri.scheme_str() == Some("https") || base.scheme_str() == Some("http")).then_some(uri)
}

pub(super) fn field(fields: &str, name: &str) -> Option<String> {
    fields.split(',').find_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim_matches('"').to_owned())
    })
}

fn encode(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_never_opens_a_closed_line() {
        let base: Uri = "https://a.example/v2/x".parse().unwrap();
        assert_eq!(join(&base, "/y").unwrap().to_string(), "https://a.example/y");
        assert!(join(&base, "http://b.example/y").is_none());
        assert!(join(&base, "file:///etc/passwd").is_none());
        assert!(join(&base, "https://b.example/y").is_some());
    }

    #[test]
    fn challenges_are_read_and_secrets_not_shown() {
        let fields = "realm=\"https://auth.example/token\",service=\"r\",scope=\"repository:x:pull\"";
        assert_eq!(field(fields, "realm").as_deref(), Some("https://auth.example/token"));
        assert_eq!(encode("repository:x/y:pull"), "repository%3Ax%2Fy%3Apull");
        let shown = format!("{:?}", Credentials { username: "a".to_owned(), password: "secret".to_owned() });
        assert!(!shown.contains("secret"));
    }
}
