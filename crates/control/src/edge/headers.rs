//! Sorts the headers of a message into those for this proxy and those for the other side.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use isopod_api::Peer;
use isopod_wire::delivery::{CHANNEL_HEADER, REPORTS_HEADER, STREAM_HEADER};

use super::refusal::TRAFFIC_HEADER;
use crate::upstream::CONTROL_HEADER;

/// Headers that apply to one connection, not to the message (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::UPGRADE,
];

/// Headers for this proxy, with the destination and its tokens. The guest trusts some of them.
const PROXY_HEADERS: [&str; 7] = [
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    TRAFFIC_HEADER,
    CHANNEL_HEADER,
    REPORTS_HEADER,
    STREAM_HEADER,
    CONTROL_HEADER,
];

/// The protocol that a request asks to switch to.
pub(super) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get_all(header::CONNECTION).iter().any(|value| has_token(value, "upgrade"));
    if asked { headers.get(header::UPGRADE).cloned() } else { None }
}

fn has_token(value: &HeaderValue, wanted: &str) -> bool {
    value.to_str().is_ok_and(|text| text.split(',').any(|token| token.trim().eq_ignore_ascii_case(wanted)))
}

/// Removes the headers that apply to one connection only. Used for both directions.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    // The body is framed again. A length that came together with chunks cannot be trusted.
    if headers.remove(header::TRANSFER_ENCODING).is_some() {
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// Removes the headers that are for this proxy.
pub(super) fn strip_proxy_headers(headers: &mut HeaderMap) {
    for name in PROXY_HEADERS {
        headers.remove(name);
    }
    headers.remove(header::EXPECT);
}

/// Sets the client's address, protocol and host. Claims of the client itself are not passed on.
pub(super) fn set_forwarded(headers: &mut HeaderMap, peer: Peer, host: Option<HeaderValue>) {
    if let Ok(value) = HeaderValue::from_str(&peer.address.to_string()) {
        headers.insert("x-forwarded-for", value);
    }
    let scheme = if peer.tls { "https" } else { "http" };
    headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
    match host {
        Some(host) => headers.insert("x-forwarded-host", host),
        None => headers.remove("x-forwarded-host"),
    };
}

/// Restricts content that shares its origin with the API: no scripts with the API's rights, no cookies either way.
pub(super) fn restrict_response(headers: &mut HeaderMap) {
    headers.remove(header::SET_COOKIE);
    headers.remove("clear-site-data");
    headers.remove("service-worker-allowed");
    headers.remove(header::STRICT_TRANSPORT_SECURITY);
    // These also apply to the whole origin: alternative services and error reporting.
    for name in ["alt-svc", "nel", "report-to", "reporting-endpoints"] {
        headers.remove(name);
    }
    headers.append(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Makes a browser save the file instead of showing it, under the name that the sandbox chose.
pub(super) fn force_download(headers: &mut HeaderMap) {
    let given = headers.get(header::CONTENT_DISPOSITION).and_then(|value| value.to_str().ok());
    let parameters = given.and_then(|text| text.split_once(';')).map(|(_, parameters)| parameters.trim());
    let attachment = match parameters {
        Some(parameters) => HeaderValue::try_from(format!("attachment; {parameters}")).ok(),
        None => None,
    };
    let attachment = attachment.unwrap_or_else(|| HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_DISPOSITION, attachment);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_saved_under_the_name_that_it_has() {
        for (given, becomes) in [
            (None, "attachment"),
            (Some("inline"), "attachment"),
            (Some("inline; filename=a.html"), "attachment; filename=a.html"),
            (Some("inline; filename*=utf-8''%C3%A9"), "attachment; filename*=utf-8''%C3%A9"),
            (Some("attachment; filename=\"a;b\""), "attachment; filename=\"a;b\""),
            (Some(" ;inline"), "attachment; inline"),
        ] {
            let mut headers = HeaderMap::new();
            for text in given.into_iter().flat_map(|given| [given, "inline"]) {
                headers.append("content-disposition", HeaderValue::from_static(text));
            }
            force_download(&mut headers);
            let all: Vec<_> = headers.get_all("content-disposition").iter().collect();
            assert_eq!(all, [becomes], "{given:?}");
        }
    }

    #[test]
    fn a_client_cannot_speak_to_the_guest_as_the_server() {
        let mut headers = HeaderMap::new();
        headers.append("X-Isopod-Control", HeaderValue::from_static("1"));
        headers.append("x-isopod-control", HeaderValue::from_static("1"));
        headers.insert("x-kept", HeaderValue::from_static("1"));
        strip_proxy_headers(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }

    #[test]
    fn headers_named_by_connection_go_with_it() {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("close, X-Secret-Hop"));
        headers.insert("x-secret-hop", HeaderValue::from_static("1"));
        headers.insert("transfer-encoding", HeaderValue::from_static("chunked"));
        headers.insert("content-length", HeaderValue::from_static("5"));
        headers.insert("x-kept", HeaderValue::from_static("1"));
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }

    #[test]
    fn an_upgrade_must_be_asked_for_in_both_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("upgrade", HeaderValue::from_static("websocket"));
        assert_eq!(wanted_upgrade(&headers), None);
        headers.insert("connection", HeaderValue::from_static("keep-alive, Upgrade"));
        assert_eq!(wanted_upgrade(&headers).unwrap(), "websocket");
    }
}
