//! Running code and reading what it tells.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;
use tokio::time::Instant;

use super::event::{Line, parse_line};
use super::lines::Lines;
use super::weight::json_weight;
use super::{CodeError, CodeEvent, CodeResult, Interpreter};
use crate::guest::GuestError;
use crate::transport::{Http, TransportError, full_body};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What to run. A text alone is Python in the default context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// The context to run it in. Excludes `language`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// The language, whose default context it then runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Variables of the environment for this run alone.
    #[serde(rename = "env_vars", skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// When to give up, which interrupts the code; none means never.
    #[serde(skip)]
    pub timeout: Option<Duration>,
}

impl RunCode {
    /// Python in the default context, for five minutes at most.
    pub fn new(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            context_id: None,
            language: None,
            envs: BTreeMap::new(),
            timeout: Some(DEFAULT_TIMEOUT),
        }
    }

    /// Chooses the language.
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// Chooses the context.
    pub fn context(mut self, id: impl Into<String>) -> Self {
        self.context_id = Some(id.into());
        self
    }

    /// Limits how long it may run.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl From<&str> for RunCode {
    fn from(code: &str) -> Self {
        Self::new(code)
    }
}

impl Interpreter {
    /// Runs code. What it tells is read from the [`Execution`]; dropping that interrupts the code.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::guest::Code::NotFound) when there is no such context,
    /// [`GuestError::PortClosed`] when the sandbox has no interpreter.
    pub async fn run(&self, code: impl Into<RunCode>) -> Result<Execution, GuestError> {
        let code = code.into();
        // A limit beyond all time is none.
        let limit = code.timeout.and_then(|timeout| Some(Limit { timeout, at: Instant::now().checked_add(timeout)? }));
        let body = serde_json::to_vec(&code).expect("the request has only string keys");
        let request = self.request(Method::POST, "/execute", full_body(body.into()))?;
        let work = async { self.accept(self.http.send(request).await?).await };
        // Others' code may run in the same context first: only the caller's own limit counts.
        let reply = match limit {
            Some(limit) => self.http.within(limit.timeout, work).await?,
            None => work.await?,
        };
        let (http, body, lines) = (self.http.clone(), reply.into_body(), Lines::up_to(self.max_event));
        Ok(Execution { http, body, lines, limit, max_event: self.max_event, weight: 0, ended: false })
    }
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    timeout: Duration,
    at: Instant,
}

/// Code that runs.
#[derive(Debug)]
pub struct Execution {
    http: Http,
    body: Incoming,
    lines: Lines,
    limit: Option<Limit>,
    max_event: usize,
    /// Of the event that was read last.
    weight: usize,
    ended: bool,
}

/// What code told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Executed {
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// What it showed, its value last.
    pub results: Vec<CodeResult>,
    /// How it failed, if it did.
    pub error: Option<CodeError>,
    /// How many cells the context has run.
    pub execution_count: Option<u64>,
    /// Some of it was left out because there was more than was asked for.
    pub truncated: bool,
}

impl Execution {
    /// The next event; none when the code has ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the time ran out or the connection broke.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, GuestError> {
        if self.ended {
            return Ok(None);
        }
        let next = self.try_next().await;
        self.ended = !matches!(next, Ok(Some(_)));
        next
    }

    /// Waits for the end and keeps everything until then, whatever memory that takes.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect(self) -> Result<Executed, GuestError> {
        self.collect_up_to(usize::MAX).await
    }

    /// Waits for the end and keeps what takes `most` bytes of memory in all. Later events that do not fit are left out.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect_up_to(mut self, most: usize) -> Result<Executed, GuestError> {
        let mut executed = Executed::default();
        let mut room = most;
        while let Some(event) = self.next().await? {
            match room.checked_sub(self.weight()) {
                Some(left) => room = left,
                None => {
                    executed.truncated = true;
                    continue;
                }
            }
            match event {
                CodeEvent::ExecutionCount(count) => executed.execution_count = Some(count),
                CodeEvent::Stdout(text) => executed.stdout.push_str(&text),
                CodeEvent::Stderr(text) => executed.stderr.push_str(&text),
                CodeEvent::Result(result) => executed.results.push(*result),
                CodeEvent::Error(error) => executed.error = Some(error),
            }
        }
        Ok(executed)
    }

    /// About how much memory the event takes that was read last, in bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }

    async fn try_next(&mut self) -> Result<Option<CodeEvent>, GuestError> {
        loop {
            if let Some(line) = self.lines.take() {
                match self.parse(&line)? {
                    Line::Event(event) => return Ok(Some(event)),
                    Line::End => return Ok(None),
                    Line::Nothing => continue,
                }
            }
            let Some(bytes) = self.next_bytes().await? else { return self.last_line() };
            if !self.lines.push(&bytes) {
                return Err(self.too_large());
            }
        }
    }

    /// The body ended cleanly. Some servers do not say more than that.
    fn last_line(&mut self) -> Result<Option<CodeEvent>, GuestError> {
        let rest = self.lines.take_rest();
        match self.parse(&rest)? {
            Line::Event(event) => Ok(Some(event)),
            Line::End | Line::Nothing => Ok(None),
        }
    }

    fn parse(&mut self, line: &[u8]) -> Result<Line, GuestError> {
        self.weight = json_weight(line);
        if self.weight > self.max_event {
            return Err(self.too_large());
        }
        parse_line(line).map_err(|error| GuestError::Protocol(format!("unreadable line of the interpreter: {error}")))
    }

    fn too_large(&self) -> GuestError {
        GuestError::Protocol(format!("an event of the interpreter is larger than {} bytes", self.max_event))
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>, TransportError> {
        loop {
            let frame = match self.limit {
                None => self.body.frame().await,
                Some(limit) => {
                    let timed_out =
                        || TransportError::Timeout { target: self.http.target().to_owned(), waited: limit.timeout };
                    // Looked at first: one who sends without end would always have something ready.
                    if Instant::now() >= limit.at {
                        return Err(timed_out());
                    }
                    tokio::time::timeout_at(limit.at, self.body.frame()).await.map_err(|_| timed_out())?
                }
            };
            match frame.transpose().map_err(|error| self.http.broken(error))?.map(http_body::Frame::into_data) {
                Some(Ok(data)) => return Ok(Some(data)),
                Some(Err(_)) => {}
                None => return Ok(None),
            }
        }
    }
}
