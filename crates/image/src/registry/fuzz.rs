//! Fuzz entry point for the responses of registries and the names of images.

use http::Uri;

use super::auth::{field, join};
use crate::manifest::parse;
use crate::{Config, Digest, Reference};

/// Parses the bytes as each of the types. Parsed values are printed and parsed again.
pub fn image_text(data: &[u8]) {
    let _ = parse(data);
    let _ = serde_json::from_slice::<Config>(data);
    let text = String::from_utf8_lossy(data);
    if let Ok(reference) = text.parse::<Reference>() {
        let printed = reference.to_string();
        let again = printed.parse::<Reference>().map(|again| again.to_string());
        assert_eq!(again.ok(), Some(printed), "the printed form must parse to the same value");
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!((digest.as_str(), digest.digits().len()), (&*text, 64));
    }
    for name in ["realm", "service", "scope"] {
        let _ = field(&text, name);
    }
    let closed = Uri::from_static("https://registry.example/v2/x/manifests/latest");
    if let Some(uri) = join(&closed, &text) {
        assert_eq!(uri.scheme_str(), Some("https"), "{uri}");
    }
}
