//! The tool `web_search`, with a search service on its own port.

use crate::support;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use isopod_agents::SearchSettings;
use isopod_wire::node::Secret;
use serde_json::{Value, json};
use support::outside::serve_http;
use support::{Answer, Server};

/// A SearXNG that knows three pages, and fails for some queries. Keeps the paths and keys of requests.
#[derive(Default)]
struct Search {
    heard: Mutex<Vec<(String, Option<String>)>>,
}

impl Search {
    async fn start(self: &Arc<Self>) -> String {
        let search = Arc::clone(self);
        let answer = hyper::service::service_fn(move |request| {
            let answer = search.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        serve_http(answer).await.to_string()
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path_and_query().unwrap().to_string();
        let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        self.heard.lock().unwrap().push((path.clone(), text("authorization").or_else(|| text("x-key"))));
        let page = |name: &str| json!({ "title": name, "url": format!("https://{name}.example/"), "content": "words" });
        let (status, body) = match path.as_str() {
            path if path.contains("moved") => (302, "{}".to_owned()),
            path if path.contains("broken") => (500, "trouble".to_owned()),
            path if path.contains("words") => (200, "<html>".to_owned()),
            path if path.contains("endless") => (200, format!("[{}]", "1,".repeat(4 << 20))),
            path if path.contains("nothing") => (200, json!({ "results": [] }).to_string()),
            _ => (200, json!({ "results": [page("one"), page("two"), page("three")] }).to_string()),
        };
        let location = "http://127.0.0.1:1/";
        Response::builder().status(status).header("location", location).body(Full::new(Bytes::from(body))).unwrap()
    }
}

async fn server(url: String, key: Option<&str>, key_header: Option<&str>) -> Server {
    let (key, key_header) = (key.map(|key| Secret(key.to_owned())), key_header.map(str::to_owned));
    let settings = SearchSettings { url, key, key_header };
    Server::start_with(move |config| config.agents.sessions.search = Some(settings.clone())).await
}

async fn search(server: &Server, query: &str) -> Answer {
    server.client.post("/runtime/r/tools/web_search", json!({ "query": query })).await
}

async fn names(server: &Server) -> Vec<Value> {
    let tools = server.client.get("/runtime/tools").await.json["tools"].as_array().unwrap().clone();
    tools.into_iter().map(|tool| tool["name"].clone()).collect()
}

#[tokio::test]
async fn a_search_service_of_the_settings_is_a_tool() {
    let service = Arc::new(Search::default());
    let address = service.start().await;
    let server = server(format!("http://{address}/search"), None, None).await;
    assert!(names(&server).await.contains(&json!("web_search")));
    let found = search(&server, "what & why").await;
    assert_eq!((found.status, &found.json["success"]), (200, &json!(true)), "{found:?}");
    let second = json!({ "title": "two", "url": "https://two.example/", "content": "words" });
    assert_eq!((&found.json["results"][1], found.json["results"].as_array().unwrap().len()), (&second, 3));
    assert!(found.json["result"].as_str().unwrap().starts_with("1. one\nhttps://one.example/\nwords"));
    let expected = ("/search?q=what%20%26%20why&format=json".to_owned(), None);
    assert_eq!(*service.heard.lock().unwrap(), [expected]);
    assert_eq!(search(&server, "nothing").await.json["result"], "No results.");

    for (query, why) in [("moved", "302"), ("broken", "500"), ("words", "JSON"), ("endless", "reached")] {
        let failed = search(&server, query).await;
        assert_eq!((failed.status, &failed.json["success"]), (200, &json!(false)), "{query}: {failed:?}");
        let error = failed.json["error"].as_str().unwrap();
        assert!(error.starts_with("Search failed: ") && error.contains(why), "{query}: {error}");
        assert!(!error.contains("127.0.0.1"), "the address is the operator's: {error}");
    }
    for bad in
        [json!({ "query": " " }), json!({}), json!({ "query": "x".repeat(1001) }), json!({ "query": "x", "url": "y" })]
    {
        assert_eq!(server.client.post("/runtime/r/tools/web_search", bad).await.status, 400);
    }
    assert_eq!(server.node.count(), 0, "it needs no sandbox");
}

#[tokio::test]
async fn a_template_has_the_query_in_its_place_and_the_key_in_its_header() {
    let service = Arc::new(Search::default());
    let address = service.start().await;
    let url = format!("http://{address}/v1/{{query}}?count=3");
    let bearer = server(url.clone(), Some("sesame"), None).await;
    assert_eq!(search(&bearer, "a/b").await.json["success"], true);
    let named = server(url, Some("sesame"), Some("X-Key")).await;
    assert_eq!(search(&named, "c").await.json["success"], true);
    let expected = [("/v1/a%2Fb?count=3", "Bearer sesame"), ("/v1/c?count=3", "sesame")];
    let expected = expected.map(|(path, key)| (path.to_owned(), Some(key.to_owned())));
    assert_eq!(*service.heard.lock().unwrap(), expected);
    for page in [bearer.client.get("/runtime/tools").await.text, search(&bearer, "broken").await.text] {
        assert!(!page.contains("sesame"), "{page}");
    }
}

#[tokio::test]
async fn without_a_search_service_there_is_no_such_tool() {
    let server = Server::start().await;
    assert!(!names(&server).await.contains(&json!("web_search")));
    assert_eq!(search(&server, "x").await.status, 404);
}
