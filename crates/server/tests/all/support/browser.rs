//! A browser on the dashboard: it keeps cookies, and sends the headers that browsers send.

use bytes::Bytes;
use http::Method;

use super::client::{Answer, Client};

/// Signed in, or not yet.
pub struct Browser {
    client: Client,
    /// `name=value` pairs.
    cookies: Vec<String>,
    /// The token of the session's forms.
    pub csrf: String,
}

impl Browser {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), cookies: Vec::new(), csrf: String::new() }
    }

    /// A browser that has signed in with the client's key.
    pub async fn signed_in(client: &Client) -> Self {
        let mut browser = Self::new(client);
        let answer = browser.sign_in(&client.key.clone()).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let page = browser.get("/dashboard").await;
        assert_eq!(page.status, 200, "{page:?}");
        browser.csrf = between(&page.text, "data-csrf=\"", "\"").to_owned();
        browser
    }

    pub async fn sign_in(&mut self, key: &str) -> Answer {
        self.send(Method::POST, "/dashboard/sign-in", &format!("key={key}"), &[]).await
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.send(Method::GET, path, "", &[]).await
    }

    /// Submits a form of a page. `fields` is url-encoded, without the token.
    pub async fn submit(&mut self, path: &str, fields: &str) -> Answer {
        let body = format!("csrf={}&{fields}", self.csrf);
        self.send(Method::POST, path, &body, &[]).await
    }

    /// With these headers in addition to, or instead of, those of a browser.
    pub async fn send(&mut self, method: Method, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.client.address);
        let (host, cookies) = (self.client.address.to_string(), self.cookies.join("; "));
        let mut all = vec![("host", host.as_str()), ("accept", "text/html"), ("sec-fetch-site", "same-origin")];
        if !cookies.is_empty() {
            all.push(("cookie", &cookies));
        }
        if method == Method::POST {
            all.extend([("origin", origin.as_str()), ("content-type", "application/x-www-form-urlencoded")]);
        }
        all.retain(|(name, _)| !headers.iter().any(|(given, _)| given == name));
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        let answer = self.client.raw(method, path, &all, Bytes::copy_from_slice(body.as_bytes())).await;
        for set in answer.headers.get_all("set-cookie") {
            self.keep(set.to_str().unwrap());
        }
        answer
    }

    /// The `Cookie` header that it sends.
    pub fn cookie(&self) -> String {
        self.cookies.join("; ")
    }

    fn keep(&mut self, set: &str) {
        let pair = set.split(';').next().unwrap();
        let name = pair.split('=').next().unwrap();
        self.cookies.retain(|known| known.split('=').next() != Some(name));
        if !set.contains("Max-Age=0") {
            self.cookies.push(pair.to_owned());
        }
    }
}

/// The text between two others.
pub fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let rest = text.split_once(start).unwrap_or_else(|| panic!("no {start:?} in {text}")).1;
    rest.split_once(end).unwrap_or_else(|| panic!("no {end:?} in {rest}")).0
}
