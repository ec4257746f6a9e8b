//! The content encodings of requests and replies: gzip or none.

use http::{HeaderMap, StatusCode, header};

use crate::http::HttpError;

/// A content encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
}

/// The encoding of the request's body.
pub(crate) fn content_encoding(headers: &HeaderMap) -> Result<Encoding, HttpError> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(Encoding::Identity) };
    let text = String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase();
    match text.as_str() {
        "" | "identity" => Ok(Encoding::Identity),
        "gzip" => Ok(Encoding::Gzip),
        _ => Err(HttpError::new(
            StatusCode::BAD_REQUEST,
            format!("error decompressing request body: unsupported Content-Encoding: {text}, supported: [gzip]"),
        )),
    }
}

/// The supported encoding that the client prefers. An error if it forbids all of them.
pub(crate) fn accepted_encoding(headers: &HeaderMap) -> Result<Encoding, HttpError> {
    let Some(value) = headers.get(header::ACCEPT_ENCODING) else { return Ok(Encoding::Identity) };
    let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let mut offers: Vec<(&str, f32)> = text.split(',').map(parse_offer).filter(|(name, _)| !name.is_empty()).collect();
    offers.sort_by(|a, b| b.1.total_cmp(&a.1));
    let identity_forbidden = offers.iter().any(|(name, quality)| *name == "identity" && *quality == 0.0);
    for (name, _) in offers.iter().filter(|(_, quality)| *quality > 0.0) {
        match *name {
            "gzip" => return Ok(Encoding::Gzip),
            "*" if identity_forbidden => return Ok(Encoding::Gzip),
            "identity" | "*" => return Ok(Encoding::Identity),
            _ => {}
        }
    }
    match identity_forbidden {
        false => Ok(Encoding::Identity),
        true => Err(HttpError::new(
            StatusCode::NOT_ACCEPTABLE,
            "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]",
        )),
    }
}

fn parse_offer(offer: &str) -> (&str, f32) {
    let mut parts = offer.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).filter(|q| q.is_finite());
    (name, quality.unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(text: &str) -> Result<Encoding, StatusCode> {
        let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, text.parse().unwrap())]);
        accepted_encoding(&headers).map_err(|error| error.status)
    }

    #[test]
    fn forbidding_everything_is_not_acceptable() {
        assert_eq!(accepted("identity;q=0"), Err(StatusCode::NOT_ACCEPTABLE));
        assert_eq!(accepted("br, identity;q=0, gzip;q=0"), Err(StatusCode::NOT_ACCEPTABLE));
    }

    #[test]
    fn the_best_offer_wins() {
        assert_eq!(accepted("gzip, deflate"), Ok(Encoding::Gzip));
        assert_eq!(accepted("identity, gzip;q=0.5"), Ok(Encoding::Identity));
        assert_eq!(accepted("br"), Ok(Encoding::Identity));
        assert_eq!(accepted("*"), Ok(Encoding::Identity));
        assert_eq!(accepted("*, identity;q=0"), Ok(Encoding::Gzip));
        assert_eq!(accepted(""), Ok(Encoding::Identity));
    }
}
