//! Which pages may send requests to the dashboard: its own. Pages of sandboxes are on names below the same domain, which
//! is the same site for browsers. So `SameSite` cookies alone don't keep them away.

use http::request::Parts;
use http::{Method, header};

/// The host name that the browser used, with its port.
pub(crate) fn host_of(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
    header.or_else(|| parts.uri.authority().map(|authority| authority.as_str()))
}

/// Whether the request comes from one of our own pages, or from the user. The error says why not.
pub(crate) fn check(parts: &Parts) -> Result<(), &'static str> {
    let text = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_safe = parts.method == Method::GET || parts.method == Method::HEAD;
    if let Some(origin) = text("origin") {
        // Not the scheme, which a proxy in front may have changed. A page of the other scheme is another site.
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        let is_own = authority.zip(host_of(parts)).is_some_and(|(one, own)| one.eq_ignore_ascii_case(own));
        if !is_own {
            return Err("this request comes from a page of another origin");
        }
    }
    match text("sec-fetch-site") {
        Some("same-origin") => Ok(()),
        // Typed, or from a bookmark. A browser sends no form like that.
        Some("none") if is_safe => Ok(()),
        // A link on another page opens one of ours, which changes nothing.
        Some(_) if is_safe && is_opened_as_page(&text) => Ok(()),
        Some(_) => Err("this request comes from a page of another site"),
        None if is_safe || text("origin").is_some() => Ok(()),
        None => Err("this request doesn't say which page it comes from"),
    }
}

fn is_opened_as_page<'a>(text: &impl Fn(&str) -> Option<&'a str>) -> bool {
    text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn is_allowed(method: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().method(method).uri("/dashboard").header("host", "isopod.localhost:3000");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0).is_ok()
    }

    const OWN: (&str, &str) = ("origin", "http://isopod.localhost:3000");
    const SANDBOX: (&str, &str) = ("origin", "http://8000-iabc.isopod.localhost:3000");

    #[test]
    fn a_change_must_come_from_our_own_pages() {
        assert!(is_allowed("POST", &[OWN]));
        assert!(is_allowed("POST", &[OWN, ("sec-fetch-site", "same-origin")]));
        assert!(is_allowed("POST", &[("sec-fetch-site", "same-origin")]));
        for headers in [
            &[][..],
            &[SANDBOX],
            &[SANDBOX, ("sec-fetch-site", "same-site")],
            &[OWN, ("sec-fetch-site", "same-site")],
            &[OWN, ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "none")],
            &[("origin", "null")],
            &[("origin", "http://isopod.localhost:3001")],
            &[("origin", "http://isopod.localhost")],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
        ] {
            assert!(!is_allowed("POST", headers), "{headers:?}");
            assert!(!is_allowed("DELETE", headers), "{headers:?}");
        }
    }

    #[test]
    fn a_page_may_be_opened_from_anywhere_but_not_read_or_framed() {
        let navigate = ("sec-fetch-mode", "navigate");
        assert!(is_allowed("GET", &[]));
        assert!(is_allowed("GET", &[("sec-fetch-site", "none"), navigate]));
        assert!(is_allowed("GET", &[("sec-fetch-site", "same-site"), navigate, ("sec-fetch-dest", "document")]));
        assert!(is_allowed("GET", &[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")]));
        for headers in [
            &[SANDBOX][..],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "websocket")],
            &[("sec-fetch-site", "cross-site"), navigate, ("sec-fetch-dest", "iframe")],
        ] {
            assert!(!is_allowed("GET", headers), "{headers:?}");
        }
    }
}
