//! A plain HTTP client, one connection per request.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

#[derive(Clone, Debug)]
pub struct Client {
    pub address: SocketAddr,
    pub key: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// Null if the body is not JSON.
    pub json: Value,
}

impl Client {
    pub fn new(address: SocketAddr, key: &str) -> Self {
        Self { address, key: key.to_owned() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], None).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, &[], Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.call(Method::PUT, path, &[], Some(body)).await
    }

    /// With the API key.
    pub async fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Answer {
        let mut headers = headers.to_vec();
        headers.push(("x-api-key", &self.key));
        if body.is_some() {
            headers.push(("content-type", "application/json"));
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.raw(method, path, &headers, body.into()).await
    }

    /// To a port of a sandbox, by headers and without the API key.
    pub async fn inside(&self, id: &str, port: u16, path: &str) -> Answer {
        let port = port.to_string();
        self.raw(Method::GET, path, &[("e2b-sandbox-id", id), ("e2b-sandbox-port", &port)], Bytes::new()).await
    }

    pub async fn raw(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Answer {
        let response = self.open(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status: parts.status.as_u16(), headers: parts.headers, text, json }
    }

    /// The head of the response, with its body still to come.
    pub async fn open(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap()
    }
}
