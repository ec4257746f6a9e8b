//! Workflow runs: start, inspect, control and follow them, and fetch their results.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use isopod_guest_client::transport::{Http, Query, empty_body, encode, read_limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::Call;
use super::create::refused;
use super::{ApiError, Client};

/// The maximum length of an event's line.
const MAX_LINE: usize = 16 << 20;
const MAX_ERROR: usize = 1 << 20;
const CLIENT_ID: HeaderName = HeaderName::from_static("x-raro-client-id");

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct RunEvent {
    /// Counts from 1 within the run. [`Client::run_events`] can start after it.
    pub id: i64,
    /// The type, such as `AgentCompleted`.
    pub event_type: String,
    /// The node that it is about.
    pub agent_id: Option<String>,
    /// The details.
    pub payload: Value,
    /// The time.
    pub timestamp: String,
}

#[derive(Deserialize)]
struct Started {
    run_id: String,
}

impl Client {
    /// Starts a workflow, written in YAML or JSON. Returns the run's id.
    ///
    /// # Errors
    /// [`ApiError::Server`] with code 400 if the workflow cannot be run.
    pub async fn start_run(&self, workflow: &str) -> Result<String, ApiError> {
        let call = Call::new(Method::POST, "/runtime/start").text(workflow.to_owned(), "application/yaml").once(None);
        let started: Started = self.call(call).await?.parse()?;
        Ok(started.run_id)
    }

    /// Lists the team's runs, the newest first.
    ///
    /// # Errors
    /// If the server cannot be reached or fails.
    pub async fn list_runs(&self, status: Option<&str>, limit: u32) -> Result<Vec<Value>, ApiError> {
        let query = Query::new().with_some("status", status).with_some("limit", Some(limit));
        self.call(Call::new(Method::GET, query.behind("/runtime/runs"))).await?.parse()
    }

    /// Returns the whole state of a run.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such run.
    pub async fn run_state(&self, run: &str) -> Result<Value, ApiError> {
        let query = Query::new().with("run_id", run);
        self.call(Call::new(Method::GET, query.behind("/runtime/state"))).await?.parse()
    }

    /// Stops a run.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if it has ended.
    pub async fn stop_run(&self, run: &str) -> Result<(), ApiError> {
        self.order_run(run, "stop", &json!({})).await
    }

    /// Continues everything in a run that waits for an approval.
    ///
    /// # Errors
    /// [`ApiError::Server`] with code 400 if nothing waits.
    pub async fn resume_run(&self, run: &str) -> Result<(), ApiError> {
        self.order_run(run, "resume", &json!({})).await
    }

    /// Approves or rejects one node, or all that wait.
    ///
    /// # Errors
    /// Like [`Self::resume_run`].
    pub async fn approve_run(&self, run: &str, node: Option<&str>, approved: bool) -> Result<(), ApiError> {
        self.order_run(run, "approve", &json!({ "node": node, "approved": approved })).await
    }

    async fn order_run(&self, run: &str, verb: &str, body: &Value) -> Result<(), ApiError> {
        let call = Call::new(Method::POST, format!("/runtime/{}/{verb}", encode(run))).json(body).once(None);
        self.call(call).await.map(drop)
    }

    /// Follows a run to its end, starting after this event.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such run.
    pub async fn run_events(&self, run: &str, after: i64) -> Result<RunEvents, ApiError> {
        let http = self.http();
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", HeaderValue::from(after));
        let path = format!("/runtime/{}/events", encode(run));
        let request = http.request(Method::GET, &path, headers, empty_body())?;
        // The timeout applies only to the head, because a run may wait long for an approval.
        let reply = http.exchange(request, |reply| async { Ok::<_, ApiError>(reply) }).await?;
        let (head, body) = reply.into_parts();
        if !head.status.is_success() {
            let body = read_limited(body, MAX_ERROR).await.map_err(|error| http.broken(error))?;
            return Err(ApiError::from_reply(head.status, &head.headers, &body));
        }
        Ok(RunEvents { http: http.clone(), body, unread: BytesMut::new() })
    }

    /// Lists the artifacts of a run in the server's format.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such run.
    pub async fn run_artifacts(&self, run: &str) -> Result<Value, ApiError> {
        self.call(Call::new(Method::GET, format!("/runtime/{}/artifacts", encode(run)))).await?.parse()
    }

    /// Downloads an artifact of a run.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such file.
    pub async fn run_artifact(&self, run: &str, path: &str) -> Result<Bytes, ApiError> {
        let path: Vec<String> = path.split('/').map(encode).collect();
        let call = Call::new(Method::GET, format!("/runtime/{}/files/{}", encode(run), path.join("/")));
        Ok(self.call(call).await?.into_body())
    }

    /// Copies an artifact of a run into the library of a client, such as `public`. Returns where it came from and when
    /// it expires, in the server's format.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such file, [`ApiError::Server`] with code 400 if no client can have this id.
    pub async fn promote_artifact(&self, run: &str, path: &str, client: &str) -> Result<Value, ApiError> {
        let path: Vec<String> = path.split('/').map(encode).collect();
        let path = format!("/runtime/artifacts/{}/files/{}/promote", encode(run), path.join("/"));
        self.call(Call::new(Method::POST, path).header(CLIENT_ID, client_id(client)?)).await?.parse()
    }

    /// Lists the library of a client in the server's format, with the public files that it sees.
    ///
    /// # Errors
    /// [`ApiError::Server`] with code 400 if no client can have this id.
    pub async fn library(&self, client: &str) -> Result<Value, ApiError> {
        self.call(Call::new(Method::GET, "/runtime/library").header(CLIENT_ID, client_id(client)?)).await?.parse()
    }
}

fn client_id(client: &str) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(client).map_err(|_| refused("the client's id has invalid characters"))
}

/// The events of a run.
#[derive(Debug)]
pub struct RunEvents {
    http: Http,
    body: Incoming,
    unread: BytesMut,
}

impl RunEvents {
    /// Returns the next event, or `None` if the run has ended or the server stops. Missed events can be requested
    /// again.
    ///
    /// # Errors
    /// If the connection breaks, or a line is not an event.
    pub async fn next(&mut self) -> Result<Option<RunEvent>, ApiError> {
        while let Some(line) = self.next_line().await? {
            let Some(data) = line.strip_prefix(b"data: ".as_slice()) else { continue };
            let event = serde_json::from_slice(data).map_err(|error| ApiError::Protocol(error.to_string()))?;
            return Ok(Some(event));
        }
        Ok(None)
    }

    async fn next_line(&mut self) -> Result<Option<BytesMut>, ApiError> {
        let mut looked_at = 0;
        loop {
            if let Some(end) = self.unread[looked_at..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.unread.split_to(looked_at + end + 1);
                line.truncate(looked_at + end);
                return Ok(Some(line));
            }
            looked_at = self.unread.len();
            if looked_at > MAX_LINE {
                return Err(ApiError::Protocol(format!("a line of more than {MAX_LINE} bytes")));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.map_err(|error| self.http.broken(error))?.into_data() {
                self.unread.extend_from_slice(&data);
            }
        }
    }
}
