//! Who sent a forwarded request, as the member that took it tells. It travels in the headers of the HTTP/2 stream that
//! carries the request, so nothing in the request itself can claim it.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use isopod_api::Peer;

const ADDRESS: HeaderName = HeaderName::from_static("isopod-client-address");
const TLS: HeaderName = HeaderName::from_static("isopod-client-tls");
const REQUEST: HeaderName = HeaderName::from_static("isopod-request-id");
const TRACE: HeaderName = HeaderName::from_static("traceparent");

/// The client of a request, and how both servers call the request in logs and traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub address: IpAddr,
    /// Whether the client's connection is encrypted.
    pub tls: bool,
    pub request_id: String,
    /// The span of the member that took the request.
    pub traceparent: Option<String>,
}

impl Origin {
    /// The origin of a client's own request with these headers.
    pub fn new(client: Peer, request_id: String, headers: &HeaderMap) -> Self {
        let traceparent = headers.get(TRACE).and_then(|header| header.to_str().ok()).map(str::to_owned);
        Self { address: client.address, tls: client.tls, request_id, traceparent }
    }

    /// The same request as another member gets it: as a part of this server's span. Its trace is the client's, or one
    /// whose id is that of the request.
    #[must_use]
    pub fn with_own_span(self) -> Self {
        let digits: String = self.request_id.chars().filter(char::is_ascii_hexdigit).collect();
        let trace = self.traceparent.as_deref().and_then(|text| text.split('-').nth(1)).unwrap_or(&digits);
        let traceparent = format!("00-{trace}-{}-01", digits.get(..16).unwrap_or_default());
        Self { traceparent: Some(traceparent), ..self }
    }

    /// The client as handlers see it.
    pub fn peer(&self) -> Peer {
        Peer { address: self.address, tls: self.tls, is_forwarded: true }
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let mut put = |name: HeaderName, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        put(ADDRESS, &self.address.to_string());
        put(TLS, if self.tls { "1" } else { "0" });
        put(REQUEST, &self.request_id);
        if let Some(trace) = &self.traceparent {
            put(TRACE, trace);
        }
    }

    /// `None` if the other side did not tell, which no version does.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        Some(Self {
            address: text(&ADDRESS)?.parse().ok()?,
            tls: text(&TLS)? == "1",
            request_id: text(&REQUEST)?.to_owned(),
            traceparent: text(&TRACE).map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_arrives_as_it_was_sent() {
        let mut headers = HeaderMap::new();
        assert_eq!(Origin::read(&headers), None);
        let origin = Origin {
            address: "fd00::7".parse().unwrap(),
            tls: true,
            request_id: "id".to_owned(),
            traceparent: Some("00-x-y-01".to_owned()),
        };
        origin.write(&mut headers);
        assert_eq!(Origin::read(&headers), Some(origin));
        headers.insert(ADDRESS, HeaderValue::from_static("nonsense"));
        assert_eq!(Origin::read(&headers), None);
    }
}
