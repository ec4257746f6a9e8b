//! Keys of AWS, exchanged for the password of its registries: one signed request (Signature Version 4) to the region's
//! own service, `api.ecr.REGION.amazonaws.com`. A mirror of that name is asked instead.

use std::fmt::{self, Write as _};
use std::time::SystemTime;

use base64::Engine as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use http_body_util::BodyExt;
use ring::{digest, hmac};
use serde::Deserialize;
use time::OffsetDateTime;

use super::http::{Dialer, is_local};
use super::{Credentials, PullError, RegistrySettings};

const SERVICE: &str = "ecr";
const TARGET: &str = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken";
const JSON: &str = "application/x-amz-json-1.1";
const BODY: &str = "{}";
const MOST_REPLY: usize = 1 << 20;

/// Keys of an account.
#[derive(Clone, PartialEq, Eq)]
pub struct AwsKeys {
    /// The name of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: String,
    /// Where the registry is.
    pub region: String,
}

impl fmt::Debug for AwsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsKeys").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Asks for the name and password that the keys open the region's registries with.
///
/// # Errors
/// When the region cannot be one, the service cannot be reached, or it refuses the keys.
pub async fn ecr_credentials(keys: &AwsKeys, settings: &RegistrySettings) -> Result<Credentials, PullError> {
    if settings.offline {
        return Err(PullError::Offline);
    }
    // It becomes part of a name that is called.
    let is_region =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if keys.region.is_empty() || keys.region.len() > 32 || !is_region(&keys.region) {
        return Err(PullError::Region(keys.region.clone()));
    }
    let domain = if keys.region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let host = format!("api.ecr.{}.{domain}", keys.region);
    let nonsense = |what: &str| PullError::Answer { registry: host.clone(), what: what.to_owned() };
    let unreachable = |reason: String| PullError::Unreachable { registry: host.clone(), reason };
    let mirror = settings.mirrors_of(&host).first().map(|(mirror, _)| (*mirror).clone());
    let (scheme, place) = match &mirror {
        Some(mirror) => (if mirror.plain { "http" } else { "https" }, mirror.to.as_str()),
        None => ("https", host.as_str()),
    };
    let uri: Uri = format!("{scheme}://{place}/").parse().map_err(|_| nonsense("at no address"))?;
    let headers = signed(keys, &uri, SystemTime::now()).ok_or_else(|| PullError::Denied(host.clone()))?;
    let dialer = Dialer::new(mirror.is_some());
    let reply = dialer.send(Method::POST, &uri, headers, Bytes::from_static(BODY.as_bytes())).await;
    let reply = reply.map_err(|error| match is_local(&error) {
        true => PullError::Local(host.clone()),
        false => unreachable(error.to_string()),
    })?;
    match reply.status() {
        status if status.is_success() => {}
        status if status.is_client_error() => return Err(PullError::Denied(host)),
        status => return Err(nonsense(&format!("with status {status}"))),
    }
    let body = http_body_util::Limited::new(reply.into_body(), MOST_REPLY).collect().await;
    let bytes = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
    parse(&bytes).ok_or_else(|| nonsense("no password"))
}

fn parse(reply: &[u8]) -> Option<Credentials> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Reply {
        authorization_data: Vec<Data>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Data {
        authorization_token: String,
    }
    let reply: Reply = serde_json::from_slice(reply).ok()?;
    let token = &reply.authorization_data.first()?.authorization_token;
    let text = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(token).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some(Credentials { username: username.to_owned(), password: password.to_owned() })
}

/// The headers of the request. None when a key has characters that no header can have.
fn signed(keys: &AwsKeys, uri: &Uri, now: SystemTime) -> Option<HeaderMap> {
    let now = OffsetDateTime::from(now);
    let (year, month, date) = now.to_calendar_date();
    let (hour, minute, second) = now.to_hms();
    let stamp = format!("{year:04}{:02}{date:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month));
    let day = &stamp[..8];
    // In the order of their names, as the signature wants them.
    let headers =
        [("content-type", JSON), ("host", uri.authority()?.as_str()), ("x-amz-date", &stamp), ("x-amz-target", TARGET)];
    let names = headers.map(|(name, _)| name).join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("POST\n/\n\n{lines}\n{names}\n{}", hash(BODY));
    let scope = format!("{day}/{}/{SERVICE}/aws4_request", keys.region);
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hash(&request));
    let first = mac(format!("AWS4{}", keys.secret_access_key).as_bytes(), day);
    let key = [&keys.region, SERVICE, "aws4_request"].iter().fold(first, |key, step| mac(key.as_ref(), step));
    let signature = hex(mac(key.as_ref(), &text).as_ref());
    let id = &keys.access_key_id;
    let line = format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
    let mut authorization = HeaderValue::try_from(line).ok()?;
    authorization.set_sensitive(true);
    Some(HeaderMap::from_iter([
        (AUTHORIZATION, authorization),
        (CONTENT_TYPE, HeaderValue::from_static(JSON)),
        (HeaderName::from_static("x-amz-date"), HeaderValue::try_from(stamp).ok()?),
        (HeaderName::from_static("x-amz-target"), HeaderValue::from_static(TARGET)),
    ]))
}

fn hash(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

fn mac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn keys(region: &str) -> AwsKeys {
        AwsKeys { access_key_id: "AKID".to_owned(), secret_access_key: "hush".to_owned(), region: region.to_owned() }
    }

    #[test]
    fn a_request_is_signed_for_its_day_region_and_host() {
        let uri: Uri = "https://api.ecr.eu-west-1.amazonaws.com/".parse().unwrap();
        let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let headers = signed(&keys("eu-west-1"), &uri, at).unwrap();
        let line = headers[AUTHORIZATION].to_str().unwrap();
        assert!(line.starts_with("AWS4-HMAC-SHA256 Credential=AKID/20231114/eu-west-1/ecr/aws4_request, "), "{line}");
        assert_eq!(headers["x-amz-date"], "20231114T221320Z");
        let other = signed(&keys("eu-west-2"), &uri, at).unwrap();
        assert_ne!(other[AUTHORIZATION], headers[AUTHORIZATION]);
        assert!(!format!("{headers:?}{:?}", keys("r")).contains("hush"));
    }

    #[tokio::test]
    async fn a_region_is_not_a_way_to_another_host() {
        for bad in ["", "x@evil.example/", "a.b", "Eu-1", "eu west"] {
            let error = ecr_credentials(&keys(bad), &RegistrySettings::default()).await.unwrap_err();
            assert!(matches!(error, PullError::Region(_)), "{bad:?}: {error}");
        }
    }

    #[test]
    fn a_reply_gives_a_name_and_a_password_or_nothing() {
        let token = base64::engine::general_purpose::STANDARD.encode("AWS:a:b");
        let reply = format!(r#"{{"authorizationData":[{{"authorizationToken":"{token}","expiresAt":1.0}}]}}"#);
        let found = parse(reply.as_bytes()).unwrap();
        assert_eq!((found.username.as_str(), found.password.as_str()), ("AWS", "a:b"));
        for bad in ["", "{}", r#"{"authorizationData":[]}"#, r#"{"authorizationData":[{"authorizationToken":"!"}]}"#] {
            assert!(parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
