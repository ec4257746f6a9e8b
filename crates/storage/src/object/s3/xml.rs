//! Parses the few XML responses of S3. It is not a general XML parser: there are no attributes and no comments, and no
//! result is longer than the response itself.

use std::time::SystemTime;

use percent_encoding::percent_decode;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::object::{Listing, ObjectInfo};

/// The text inside the first element with this name.
pub(super) fn text<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    elements(xml, name).next()
}

/// The content of all elements with this name. Elements with the same name never nest in S3's responses.
pub(super) fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let open = format!("<{name}>");
    let close = format!("</{name}>");
    let mut rest = xml;
    std::iter::from_fn(move || {
        let start = rest.find(&open)? + open.len();
        let length = rest[start..].find(&close)?;
        let inside = &rest[start..start + length];
        rest = &rest[start + length + close.len()..];
        Some(inside)
    })
}

/// A listing, or `None` if the response is not valid.
pub(super) fn listing(xml: &str) -> Option<Listing> {
    if !xml.contains("<ListBucketResult") {
        return None;
    }
    let escaped = text(xml, "EncodingType") == Some("url");
    let mut listing = Listing::default();
    for object in elements(xml, "Contents") {
        listing.objects.push(object_info(object, escaped)?);
    }
    for prefix in elements(xml, "CommonPrefixes") {
        listing.prefixes.push(key(text(prefix, "Prefix")?, escaped)?);
    }
    if text(xml, "IsTruncated") == Some("true") {
        listing.next = Some(unescape(text(xml, "NextContinuationToken")?));
    }
    Some(listing)
}

/// Replaces the five named character entities of XML.
pub(super) fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let named = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    named.replace("&#34;", "\"").replace("&#39;", "'").replace("&amp;", "&")
}

/// Escapes a text for use inside an element.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn object_info(xml: &str, escaped: bool) -> Option<ObjectInfo> {
    let modified = OffsetDateTime::parse(text(xml, "LastModified")?.trim(), &Rfc3339).ok()?;
    Some(ObjectInfo {
        key: key(text(xml, "Key")?, escaped)?,
        size: text(xml, "Size")?.trim().parse().ok()?,
        tag: unescape(text(xml, "ETag").unwrap_or_default()),
        modified: SystemTime::from(modified),
        metadata: None,
    })
}

fn key(text: &str, escaped: bool) -> Option<String> {
    let text = unescape(text);
    if !escaped {
        return Some(text);
    }
    let spaced = text.replace('+', " ");
    percent_decode(spaced.as_bytes()).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read() {
        let xml = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><IsTruncated>true</IsTruncated>\
            <NextContinuationToken>a&amp;b</NextContinuationToken><EncodingType>url</EncodingType>\
            <Contents><Key>a%2Bb+c%0A</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified>\
            <ETag>&quot;abc&quot;</ETag><Size>12</Size></Contents>\
            <CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes></ListBucketResult>";
        let listing = listing(xml).unwrap();
        assert_eq!(listing.objects[0].key, "a+b c\n");
        assert_eq!((listing.objects[0].size, listing.objects[0].tag.as_str()), (12, "\"abc\""));
        assert_eq!(listing.prefixes, ["d/"]);
        assert_eq!(listing.next.as_deref(), Some("a&b"));
    }

    #[test]
    fn half_an_answer_is_none() {
        assert!(listing("<ListBucketResult><Contents><Key>a</Key></Contents>").is_none());
        assert!(listing("<html>a gateway's error page</html>").is_none());
    }
}
