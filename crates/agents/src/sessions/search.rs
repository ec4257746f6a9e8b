//! `web_search`: asks the search service that the operator has set. Agents choose the query, never the address.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use isopod_outbound::{Policy, RequestError, Target, TargetError, Trust, fetch};
use isopod_wire::node::Secret;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;

/// The search service behind `web_search`.
#[derive(Clone, Debug)]
pub struct SearchSettings {
    /// The address of a SearXNG, such as `https://searx.example/search`, or any URL with `{query}` in its path or query.
    pub url: String,
    /// Sent with each search.
    pub key: Option<Secret>,
    /// The header for the key. Without it, the key is a bearer token.
    pub key_header: Option<String>,
}

/// The search settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SearchSettingsError {
    #[error("the URL of the search service is invalid")]
    Url(#[source] TargetError),
    #[error("{{query}} in the URL of the search service must be behind the host")]
    Place,
    #[error("the key of the search service, or its header, cannot be sent")]
    Header(#[source] http::Error),
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub(super) enum SearchError {
    #[error("the search service cannot be reached")]
    Request(#[source] RequestError),
    #[error("the search service returned {0}")]
    Status(http::StatusCode),
    #[error("the search service returned no list of results in JSON")]
    Answer,
}

/// A page that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    pub(super) title: String,
    pub(super) url: String,
    pub(super) content: String,
}

#[derive(Debug)]
pub(super) struct WebSearch {
    settings: SearchSettings,
    trust: Trust,
}

const QUERY: &str = "{query}";
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_ANSWER: usize = 4 << 20;
const MAX_RESULTS: usize = 10;
/// Characters of a title or an address, and of what a page says.
const MAX_WORDS: usize = 500;
const MAX_CONTENT: usize = 2000;

impl WebSearch {
    pub(super) fn new(settings: SearchSettings, trust: Trust) -> Result<Self, SearchSettingsError> {
        let search = Self { settings, trust };
        let (one, two) = (search.target("one"), search.target("two"));
        let (one, two) = (one.map_err(SearchSettingsError::Url)?, two.map_err(SearchSettingsError::Url)?);
        if one.authority != two.authority {
            return Err(SearchSettingsError::Place);
        }
        search.request(&one).map_err(SearchSettingsError::Header)?;
        Ok(search)
    }

    pub(super) async fn search(&self, query: &str) -> Result<Vec<Found>, SearchError> {
        let searching = tokio::time::timeout(TIMEOUT, self.ask(query)).await;
        let (status, body) = searching.unwrap_or(Err(RequestError::Timeout)).map_err(SearchError::Request)?;
        if !status.is_success() {
            return Err(SearchError::Status(status));
        }
        let answer: Value = serde_json::from_slice(&body).map_err(|_| SearchError::Answer)?;
        let list = results_of(&answer).ok_or(SearchError::Answer)?;
        Ok(list.iter().filter_map(found).take(MAX_RESULTS).collect())
    }

    async fn ask(&self, query: &str) -> Result<(http::StatusCode, bytes::Bytes), RequestError> {
        let target = self.target(query)?;
        // The operator named the host, and it may be on this machine.
        let policy = Policy::default().and(target.place());
        fetch(&target, &self.trust, &policy, self.request(&target)?, MAX_ANSWER).await
    }

    fn target(&self, query: &str) -> Result<Target, TargetError> {
        let (url, query) = (&self.settings.url, utf8_percent_encode(query, NON_ALPHANUMERIC).to_string());
        if url.contains(QUERY) {
            return Target::parse(&url.replace(QUERY, &query));
        }
        let separator = if url.contains('?') { '&' } else { '?' };
        Target::parse(&format!("{url}{separator}q={query}&format=json"))
    }

    fn request(&self, target: &Target) -> Result<Request<Body>, http::Error> {
        let request = Request::get(&target.path)
            .header("host", &target.authority)
            .header("accept", "application/json")
            .header("user-agent", concat!("isopod/", env!("CARGO_PKG_VERSION")));
        let request = match (&self.settings.key, &self.settings.key_header) {
            (None, _) => request,
            (Some(key), Some(header)) => request.header(header, &key.0),
            (Some(key), None) => request.header("authorization", format!("Bearer {}", key.0)),
        };
        request.body(Body::empty())
    }
}

/// Where services have their results: SearXNG and Tavily, Brave, Google, Serper.
fn results_of(answer: &Value) -> Option<&Vec<Value>> {
    let places = ["/results", "/web/results", "/items", "/organic", "/data", ""];
    places.iter().find_map(|place| answer.pointer(place)?.as_array())
}

fn found(result: &Value) -> Option<Found> {
    let text = |names: &[&str], most: usize| {
        let text = names.iter().find_map(|name| result[*name].as_str()).unwrap_or_default();
        text.chars().take(most).collect::<String>()
    };
    let url = text(&["url", "link", "href"], MAX_WORDS);
    let content = text(&["content", "snippet", "description", "body"], MAX_CONTENT);
    (!url.is_empty()).then(|| Found { title: text(&["title", "name"], MAX_WORDS), url, content })
}

/// The results as text, for a model.
pub(super) fn shown(found: &[Found]) -> String {
    if found.is_empty() {
        return "No results.".to_owned();
    }
    let one = |(number, found): (usize, &Found)| {
        let Found { title, url, content } = found;
        format!("{}. {title}\n{url}\n{content}", number + 1)
    };
    found.iter().enumerate().map(one).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn search(url: &str) -> Result<WebSearch, SearchSettingsError> {
        let settings = SearchSettings { url: url.to_owned(), key: None, key_header: None };
        WebSearch::new(settings, Trust::new(Vec::new()))
    }

    #[test]
    fn a_query_cannot_leave_its_place_in_the_url() {
        let path = |url: &str| search(url).unwrap().target("a b&c=d/../{query}#é").unwrap();
        let searx = path("http://127.0.0.1:8888/search");
        assert_eq!(searx.path, "/search?q=a%20b%26c%3Dd%2F%2E%2E%2F%7Bquery%7D%23%C3%A9&format=json");
        assert_eq!(searx.authority, "127.0.0.1:8888");
        assert!(path("https://s.example/search?language=en").path.contains("?language=en&q="));
        assert!(path("https://s.example/v1/{query}/x?n=5").path.ends_with("%C3%A9/x?n=5"));
        for bad in ["https://{query}.example/", "ftp://x/", "words", "https://a:b@host/"] {
            assert!(search(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn results_of_usual_services_are_read_and_bounded() {
        let result = json!({ "title": "T", "link": "https://x/", "snippet": "s".repeat(9999) });
        for answer in [
            json!({ "results": [result] }),
            json!({ "web": { "results": [result] } }),
            json!({ "items": [result, { "title": "without an address" }] }),
            json!([result]),
        ] {
            let list: Vec<Found> = results_of(&answer).unwrap().iter().filter_map(found).collect();
            assert_eq!((list.len(), list[0].url.as_str(), list[0].content.len()), (1, "https://x/", MAX_CONTENT));
        }
        assert_eq!(results_of(&json!({ "results": "none" })), None);
        assert_eq!(shown(&[]), "No results.");
    }

    #[test]
    fn a_key_that_is_no_header_is_refused_at_the_start() {
        let settings =
            SearchSettings { url: "http://x/".to_owned(), key: Some(Secret("a\nb".to_owned())), key_header: None };
        assert!(WebSearch::new(settings, Trust::new(Vec::new())).is_err());
    }
}
