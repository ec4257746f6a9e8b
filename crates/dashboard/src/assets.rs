//! The dashboard's own scripts, styles and pictures, and the libraries of others in `assets/vendor` with their licenses.
//! They are compressed when the program is built.

use std::io::Read as _;

use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// A file, compressed with gzip.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    packed: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The URL of an asset. It changes with the content of any of them, so that scripts can import each other by relative
/// URLs.
pub(crate) fn url(name: &str) -> String {
    debug_assert!(ASSETS.iter().any(|asset| asset.name == name), "there is no asset {name}");
    format!("/dashboard/assets/{VERSION}/{name}")
}

/// `GET /dashboard/assets/{version}/{*name}`
pub(crate) async fn get(Path((version, name)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let found = ASSETS.iter().find(|asset| asset.name == name);
    // An old page may ask for an old version, and must not keep the new file under that name.
    let Some(asset) = found.filter(|_| version == VERSION) else { return StatusCode::NOT_FOUND.into_response() };
    let tag = HeaderValue::from_static(TAG);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| *known == tag);
    let mut response = match (is_known, takes_gzip(&headers)) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => {
            let mut response = Response::new(Body::from(asset.packed));
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        (false, false) => Response::new(Body::from(unpack(asset.packed))),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::ETAG, tag);
    response
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| coding.split(';').next().is_some_and(|name| name.trim() == "gzip"))
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    // Cannot fail: the build wrote it.
    let _ = GzDecoder::new(packed).read_to_end(&mut content);
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of(names: &[&str]) -> usize {
        names.iter().map(|name| ASSETS.iter().find(|asset| asset.name == *name).unwrap().packed.len()).sum()
    }

    #[test]
    fn every_asset_unpacks_and_is_text() {
        for asset in ASSETS {
            assert!(String::from_utf8(unpack(asset.packed)).is_ok_and(|text| !text.is_empty()), "{}", asset.name);
        }
    }

    #[test]
    fn a_page_loads_little() {
        let everything: usize = ASSETS.iter().map(|asset| asset.packed.len()).sum();
        assert!(everything < 300_000, "all assets together have {everything} bytes");
        assert!(size_of(&["app.js", "style.css", "icon.svg"]) < 30_000);
    }

    #[test]
    fn gzip_is_sent_only_to_those_who_take_it() {
        let asked = |value: &str| HeaderMap::from_iter([(header::ACCEPT_ENCODING, value.parse().unwrap())]);
        assert!(takes_gzip(&asked("br, gzip;q=0.8")));
        assert!(!takes_gzip(&asked("br, xgzip")));
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
