//! Fuzz targets for request routing and for streams.

use http::{HeaderMap, HeaderValue, Request, Uri};

use super::frames::{Frames, StreamEnd};
use super::headers::{strip_hop_by_hop, wanted_upgrade};
use super::route::{Domains, Form, by_headers, by_host, by_path, host_name};
use super::signature::Signed;

/// Lines: path, host, the two routing headers, connection, upgrade.
pub fn edge_route(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let Ok(uri) = Uri::try_from(lines.next().unwrap_or_default()) else { return };
    let mut request = Request::new(());
    *request.uri_mut() = uri;
    let names = ["host", "e2b-sandbox-id", "e2b-sandbox-port", "connection", "upgrade"];
    for (name, line) in names.into_iter().zip(lines) {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            request.headers_mut().insert(name, value);
        }
    }
    let (mut parts, ()) = request.into_parts();
    let domains = Domains::new("isopod.localhost:3000", &[]);
    for found in
        [by_host(&parts, &domains), by_headers(&parts.headers), by_path(&parts.uri)].into_iter().flatten().flatten()
    {
        assert_ne!(found.port, 0);
        assert!(found.sandbox.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()), "{found:?}");
        if let Form::Path(path) = found.form {
            assert!(path.starts_with('/'), "{path}");
        }
    }
    let _ = Signed::from_query(parts.uri.query().unwrap_or_default());
    let _ = host_name(&String::from_utf8_lossy(data));
    check_headers(&mut parts.headers);
}

fn check_headers(headers: &mut HeaderMap) {
    if wanted_upgrade(headers).is_some() {
        assert!(headers.contains_key("connection"));
    }
    strip_hop_by_hop(headers);
    assert!(["connection", "upgrade", "te", "keep-alive"].iter().all(|name| !headers.contains_key(*name)));
}

/// The first byte determines the size of the pieces. A stream can be ended only between two frames.
pub fn edge_stream(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let mut frames = Frames::default();
    let mut passed = 0;
    for piece in data.chunks(usize::from(*step) + 1) {
        frames.pass(piece);
        passed += piece.len();
        assert_eq!(frames.end_frame(StreamEnd::SandboxPaused).is_some(), is_between_frames(&data[..passed]));
    }
}

fn is_between_frames(mut bytes: &[u8]) -> bool {
    while let [_, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some(after) = rest.get(length..) else { return false };
        bytes = after;
    }
    bytes.is_empty()
}
