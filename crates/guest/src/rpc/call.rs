//! What every call carries in addition to its message: codec, deadline, keep-alive interval and user.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use isopod_wire::delivery::{CHANNEL_HEADER, REPORTS_HEADER};
use tokio::time::Instant;

use crate::http::basic_user;
use crate::rpc::{Code, Codec, RpcError};
use crate::settings::Settings;
use crate::users::User;

const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);

/// One call on its way to a method.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) settings: Arc<Settings>,
    pub(crate) codec: Codec,
    pub(crate) deadline: Option<Instant>,
    pub(crate) keepalive: Duration,
    /// The channel on which the edge reports how much of the reply's stream its client has received.
    pub(crate) delivery: Option<u64>,
    /// How many reports the edge had sent on this channel before the call.
    pub(crate) reports: u64,
    user: Option<String>,
}

impl Call {
    pub(crate) fn new(settings: &Arc<Settings>, codec: Codec, headers: &HeaderMap) -> Result<Self, RpcError> {
        if headers.get("connect-protocol-version").is_some_and(|version| version != "1") {
            return Err(RpcError::new(Code::InvalidArgument, "connect-protocol-version must be 1"));
        }
        for name in ["content-encoding", "connect-content-encoding"] {
            if headers.get(name).is_some_and(|encoding| encoding != "identity") {
                return Err(RpcError::new(Code::Unimplemented, "compressed requests are not supported"));
            }
        }
        Ok(Self {
            settings: Arc::clone(settings),
            codec,
            deadline: parse_timeout(headers)?.map(|timeout| Instant::now() + timeout),
            keepalive: parse_keepalive(headers),
            delivery: parse_number(headers, CHANNEL_HEADER),
            reports: parse_number(headers, REPORTS_HEADER).unwrap_or(0),
            user: basic_user(headers.get(header::AUTHORIZATION)),
        })
    }

    /// The user that the call names, or else the sandbox's default user.
    pub(crate) fn user(&self) -> Result<User, RpcError> {
        let name = self.user.as_deref().unwrap_or(&self.settings.default_user);
        User::by_name(name).ok_or_else(|| RpcError::new(Code::Unauthenticated, format!("invalid username: '{name}'")))
    }
}

fn parse_timeout(headers: &HeaderMap) -> Result<Option<Duration>, RpcError> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    // The protocol allows ten digits. That also keeps the sum with the current time representable.
    let digits = value.to_str().ok().filter(|text| (1..=10).contains(&text.len()));
    let millis = digits.and_then(|text| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten());
    let millis = millis.ok_or_else(|| RpcError::new(Code::InvalidArgument, "connect-timeout-ms is not a number"))?;
    Ok(Some(Duration::from_millis(millis)))
}

fn parse_number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn parse_keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    seconds.filter(|s| *s > 0).map_or(DEFAULT_KEEPALIVE, |s| Duration::from_secs(s.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn timeouts_are_up_to_ten_digits() {
        for bad in ["", "-1", "1.5", "12345678901", "+5"] {
            assert!(parse_timeout(&with("connect-timeout-ms", bad)).is_err(), "{bad}");
        }
        assert_eq!(
            parse_timeout(&with("connect-timeout-ms", "9999999999")).unwrap(),
            Some(Duration::from_millis(9999999999))
        );
        assert_eq!(parse_timeout(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn odd_keepalives_become_the_default() {
        assert_eq!(parse_keepalive(&with("keepalive-ping-interval", "0")), DEFAULT_KEEPALIVE);
        assert_eq!(parse_keepalive(&with("keepalive-ping-interval", "x")), DEFAULT_KEEPALIVE);
        assert_eq!(parse_keepalive(&with("keepalive-ping-interval", "50")), Duration::from_secs(50));
    }
}
