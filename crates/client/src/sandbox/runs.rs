//! Runs of workflows: start them, look at them, tell them what to do, follow them, fetch what they made.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use isopod_guest_client::transport::{Http, Query, empty_body, encode, read_limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::Call;
use super::{ApiError, Client};

/// A longer line is no event.
const MAX_LINE: usize = 16 << 20;
const MAX_ERROR: usize = 1 << 20;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct RunEvent {
    /// Counts from 1 within the run; [`Client::run_events`] can begin after it.
    pub id: i64,
    /// Such as `AgentCompleted`.
    pub event_type: String,
    /// The node that it is about.
    pub agent_id: Option<String>,
    /// What is known about it.
    pub payload: Value,
    /// When.
    pub timestamp: String,
}

#[derive(Deserialize)]
struct Started {
    run_id: String,
}

impl Client {
    /// Starts a workflow, written in YAML or JSON. Gives the run's id.
    ///
    /// # Errors
    /// [`ApiError::Server`] with code 400 when the workflow cannot be run.
    pub async fn start_run(&self, workflow: &str) -> Result<String, ApiError> {
        let call = Call::new(Method::POST, "/runtime/start").text(workflow.to_owned(), "application/yaml").once(None);
        let started: Started = self.call(call).await?.parse()?;
        Ok(started.run_id)
    }

    /// The team's runs, the newest first.
    ///
    /// # Errors
    /// When the server cannot be reached or fails.
    pub async fn list_runs(&self, status: Option<&str>, limit: u32) -> Result<Vec<Value>, ApiError> {
        let query = Query::new().with_some("status", status).with_some("limit", Some(limit));
        self.call(Call::new(Method::GET, query.behind("/runtime/runs"))).await?.parse()
    }

    /// Everything about a run.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such run.
    pub async fn run_state(&self, run: &str) -> Result<Value, ApiError> {
        let query = Query::new().with("run_id", run);
        self.call(Call::new(Method::GET, query.behind("/runtime/state"))).await?.parse()
    }

    /// Ends a run.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] when it has ended.
    pub async fn stop_run(&self, run: &str) -> Result<(), ApiError> {
        self.order_run(run, "stop", &json!({})).await
    }

    /// Lets everything in a run go on that waits for a person.
    ///
    /// # Errors
    /// [`ApiError::Server`] with code 400 when nothing waits.
    pub async fn resume_run(&self, run: &str) -> Result<(), ApiError> {
        self.order_run(run, "resume", &json!({})).await
    }

    /// Says yes or no to one node, or to all that wait.
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

    /// Follows a run from after this event to its end.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such run.
    pub async fn run_events(&self, run: &str, after: i64) -> Result<RunEvents, ApiError> {
        let http = self.http();
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", HeaderValue::from(after));
        let path = format!("/runtime/{}/events", encode(run));
        let request = http.request(Method::GET, &path, headers, empty_body())?;
        // Only the head within the timeout: a person may think for long in the middle of a run.
        let reply = http.exchange(request, |reply| async { Ok::<_, ApiError>(reply) }).await?;
        let (head, body) = reply.into_parts();
        if !head.status.is_success() {
            let body = read_limited(body, MAX_ERROR).await.map_err(|error| http.broken(error))?;
            return Err(ApiError::from_reply(head.status, &head.headers, &body));
        }
        Ok(RunEvents { http: http.clone(), body, unread: BytesMut::new() })
    }

    /// What a run has made, as the server lists it.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such run.
    pub async fn run_artifacts(&self, run: &str) -> Result<Value, ApiError> {
        self.call(Call::new(Method::GET, format!("/runtime/{}/artifacts", encode(run)))).await?.parse()
    }

    /// One file that a run has made.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such file.
    pub async fn run_artifact(&self, run: &str, path: &str) -> Result<Bytes, ApiError> {
        let path: Vec<String> = path.split('/').map(encode).collect();
        let call = Call::new(Method::GET, format!("/runtime/{}/files/{}", encode(run), path.join("/")));
        Ok(self.call(call).await?.into_body())
    }
}

/// The events of a run, as they come.
#[derive(Debug)]
pub struct RunEvents {
    http: Http,
    body: Incoming,
    unread: BytesMut,
}

impl RunEvents {
    /// The next event; none when the run has ended or the server stops. What was missed can be asked for again.
    ///
    /// # Errors
    /// When the connection breaks, or what comes is no event.
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
