//! The dashboard's cookies. Over TLS they have the prefix `__Host-`, so that no other host can set them. Otherwise their
//! names have the server's port, because all servers of a machine share one set of cookies.

use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use isopod_api::scheme_of;

use crate::origin::host_of;

/// A cookie of a site.
#[derive(Clone, Debug)]
pub(crate) struct CookieName {
    name: String,
    is_secure: bool,
}

impl CookieName {
    /// The cookie of this purpose for the site of a request.
    pub(crate) fn of(purpose: &str, parts: &Parts) -> Self {
        let is_secure = scheme_of(parts) == "https";
        let port = host_of(parts).and_then(|host| host.rsplit_once(':')).map_or("", |(_, port)| port);
        let port = if port.bytes().all(|byte| byte.is_ascii_digit()) { port } else { "" };
        let name = if is_secure { format!("__Host-isopod-{purpose}") } else { format!("isopod-{purpose}-{port}") };
        Self { name, is_secure }
    }

    /// The value that the browser sent. `None` if there are two of them: one is from another host below the same
    /// domain, and nobody can tell which.
    pub(crate) fn read(&self, headers: &HeaderMap) -> Option<String> {
        let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut values = pairs.filter(|(name, _)| *name == self.name).map(|(_, value)| value.to_owned());
        let first = values.next()?;
        values.next().is_none().then_some(first)
    }

    /// Tells the browser to keep this value. It must consist of characters of base64url.
    pub(crate) fn set(&self, value: &str, seconds: u64) -> Option<HeaderValue> {
        // Other paths of this origin serve sandboxes, which need not see it. The prefix requires the root.
        let scope = if self.is_secure { "Path=/; Secure" } else { "Path=/dashboard" };
        let name = &self.name;
        HeaderValue::try_from(format!("{name}={value}; {scope}; HttpOnly; SameSite=Strict; Max-Age={seconds}")).ok()
    }

    /// Tells the browser to forget it.
    pub(crate) fn clear(&self) -> Option<HeaderValue> {
        self.set("", 0)
    }
}

pub(crate) fn append_cookie(response: &mut Response, cookie: Option<HeaderValue>) {
    if let Some(cookie) = cookie {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get("/dashboard").header("host", "localhost:3000");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_cookie_of_two_hosts_is_nobodys() {
        let read = |cookies: &[(&str, &str)]| {
            let parts = parts(cookies);
            CookieName::of("session", &parts).read(&parts.headers)
        };
        assert_eq!(read(&[("cookie", "a=b; isopod-session-3000=x")]).as_deref(), Some("x"));
        assert_eq!(read(&[("cookie", "isopod-session-3000=x; isopod-session-3000=y")]), None);
        assert_eq!(read(&[("cookie", "isopod-session-3000=x"), ("cookie", "isopod-session-3000=x")]), None);
        assert_eq!(read(&[("cookie", "isopod-session-3001=x; __Host-isopod-session=y")]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn over_tls_no_other_host_can_set_it() {
        let parts = parts(&[("x-forwarded-proto", "https"), ("cookie", "__Host-isopod-session=x")]);
        let cookie = CookieName::of("session", &parts);
        assert_eq!(cookie.read(&parts.headers).as_deref(), Some("x"));
        let set = cookie.set("y", 60).unwrap();
        assert_eq!(set, "__Host-isopod-session=y; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=60");
    }

    #[test]
    fn over_plain_http_it_goes_only_to_the_pages() {
        let cookie = CookieName::of("session", &parts(&[]));
        let set = cookie.clear().unwrap();
        assert_eq!(set, "isopod-session-3000=; Path=/dashboard; HttpOnly; SameSite=Strict; Max-Age=0");
    }
}
