//! Exchanges AWS keys for the password of AWS registries, with one signed request (Signature Version 4) to the region's
//! service, `api.ecr.REGION.amazonaws.com`. If there is a mirror for that name, the request goes to the mirror.

use std::fmt;
use std::time::SystemTime;

use base64::Engine as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, Uri};
use isopod_outbound::collect;
use isopod_outbound::sigv4::{Signer, sha256};
use serde::Deserialize;

use super::http::{Dialer, is_internal};
use super::{Credentials, IDLE_TIMEOUT, PullError, RegistrySettings};

const SERVICE: &str = "ecr";
const TARGET: &str = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken";
const JSON: &str = "application/x-amz-json-1.1";
const BODY: &str = "{}";
const MAX_REPLY: usize = 1 << 20;

/// The keys of an AWS account.
#[derive(Clone, PartialEq, Eq)]
pub struct AwsKeys {
    pub access_key_id: String,
    pub secret_access_key: String,
    /// The region of the registry.
    pub region: String,
}

impl fmt::Debug for AwsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsKeys").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Requests the user name and password for the region's registries.
///
/// # Errors
/// If the region is not valid, the service cannot be reached, or it refuses the keys.
pub async fn ecr_credentials(keys: &AwsKeys, settings: &RegistrySettings) -> Result<Credentials, PullError> {
    if settings.offline {
        return Err(PullError::Offline);
    }
    // The region becomes part of a host name, so check it.
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
    let uri: Uri = format!("{scheme}://{place}/").parse().map_err(|_| nonsense("an invalid address for the mirror"))?;
    let headers = signed(keys, &uri, SystemTime::now()).ok_or_else(|| PullError::Denied(host.clone()))?;
    let dialer = match &mirror {
        Some(mirror) => Dialer::with_place(settings.outbound.clone(), &mirror.to, mirror.plain),
        None => Dialer::new(settings.outbound.clone()),
    };
    let reply = dialer.send(Method::POST, &uri, headers, Bytes::from_static(BODY.as_bytes())).await;
    let reply = reply.map_err(|error| match is_internal(&error) {
        true => PullError::Internal(host.clone()),
        false => unreachable(error.to_string()),
    })?;
    match reply.status() {
        status if status.is_success() => {}
        status if status.is_client_error() => return Err(PullError::Denied(host)),
        status => return Err(nonsense(&format!("status {status}"))),
    }
    let read = tokio::time::timeout(IDLE_TIMEOUT, collect(reply.into_body(), MAX_REPLY)).await;
    let read = read.map_err(|_| unreachable("it stopped sending".to_owned()))?;
    let bytes = read.map_err(|error| unreachable(error.to_string()))?;
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

/// The headers of the request. `None` if a key has characters that are not valid in a header.
fn signed(keys: &AwsKeys, uri: &Uri, now: SystemTime) -> Option<HeaderMap> {
    let request = Request::post(uri)
        .header(HOST, uri.authority()?.as_str())
        .header(CONTENT_TYPE, JSON)
        .header("x-amz-target", TARGET)
        .body(())
        .ok()?;
    let (mut parts, ()) = request.into_parts();
    let signer = Signer {
        access_key: &keys.access_key_id,
        secret_key: &keys.secret_access_key,
        session_token: None,
        region: &keys.region,
        service: SERVICE,
    };
    signer.sign(&mut parts, &sha256(BODY.as_bytes()), now);
    parts.headers.contains_key(AUTHORIZATION).then_some(parts.headers)
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
