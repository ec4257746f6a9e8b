//! Runs code and reads its events.

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
use crate::memory::{MemoryBudget, Reservation};
use crate::transport::{Http, TransportError, full_body};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The code to run. A string alone is Python in the default context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// The context to run it in. Excludes `language`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// The language. The code runs in its default context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Environment variables for this run only.
    #[serde(rename = "env_vars", skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// The time limit, after which the code is interrupted. `None` is no limit.
    #[serde(skip)]
    pub timeout: Option<Duration>,
}

impl RunCode {
    /// Runs Python in the default context, for at most five minutes.
    pub fn new(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            context_id: None,
            language: None,
            envs: BTreeMap::new(),
            timeout: Some(DEFAULT_TIMEOUT),
        }
    }

    /// Sets the language.
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// Sets the context.
    pub fn context(mut self, id: impl Into<String>) -> Self {
        self.context_id = Some(id.into());
        self
    }

    /// Limits its running time.
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
    /// Runs code. Read its events from the [`Execution`]. Dropping that interrupts the code.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::guest::Code::NotFound) if there is no such context, [`GuestError::PortClosed`] if the
    /// sandbox has no interpreter.
    pub async fn run(&self, code: impl Into<RunCode>) -> Result<Execution, GuestError> {
        let code = code.into();
        // A limit that overflows is no limit.
        let limit = code.timeout.and_then(|timeout| Some(Limit { timeout, at: Instant::now().checked_add(timeout)? }));
        let body = serde_json::to_vec(&code).expect("the request has only string keys");
        let request = self.request(Method::POST, "/execute", full_body(body.into()))?;
        let work = async { self.accept(self.http.send(request).await?).await };
        // Other code may run in the same context first, so only the caller's own limit applies.
        let reply = match limit {
            Some(limit) => self.http.within(limit.timeout, work).await?,
            None => work.await?,
        };
        let (http, body, lines) = (self.http.clone(), reply.into_body(), Lines::up_to(self.max_event));
        let (max_event, received) = (self.max_event, self.memory.reserve());
        Ok(Execution { http, body, lines, limit, max_event, received, weight: 0, dropped: false, ended: false })
    }
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    timeout: Duration,
    at: Instant,
}

/// Running code.
#[derive(Debug)]
pub struct Execution {
    http: Http,
    body: Incoming,
    lines: Lines,
    limit: Option<Limit>,
    max_event: usize,
    /// The memory for the line that is being received and the last event.
    received: Reservation,
    /// The size of the last event.
    weight: usize,
    /// Whether an event did not fit into the memory.
    dropped: bool,
    ended: bool,
}

/// The collected events of code.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Executed {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its results, with the value of the last expression at the end.
    pub results: Vec<CodeResult>,
    /// The error that it raised, if any.
    pub error: Option<CodeError>,
    /// The number of cells that the context has run.
    pub execution_count: Option<u64>,
    /// Whether events were dropped because they exceeded the requested limit.
    pub truncated: bool,
}

impl Execution {
    /// Returns the next event, or `None` if the code has ended. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// If the time limit expired or the connection broke.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, GuestError> {
        if self.ended {
            return Ok(None);
        }
        let next = self.try_next().await;
        self.ended = !matches!(next, Ok(Some(_)));
        next
    }

    /// Waits for the end and keeps all events, whatever memory that takes.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect(self) -> Result<Executed, GuestError> {
        self.collect_up_to(usize::MAX).await
    }

    /// Waits for the end and keeps events of at most `most` bytes of memory in total. Events that do not fit are
    /// dropped.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect_up_to(self, most: usize) -> Result<Executed, GuestError> {
        self.collect_within(most, &mut MemoryBudget::unlimited().reserve()).await
    }

    /// Like [`Self::collect_up_to`], but also drops events that don't fit into this reservation.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect_within(mut self, most: usize, memory: &mut Reservation) -> Result<Executed, GuestError> {
        let mut executed = Executed::default();
        let mut room = most;
        while let Some(event) = self.next().await? {
            match room.checked_sub(self.weight()) {
                Some(left) if memory.grow(self.weight()) => room = left,
                _ => {
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
        executed.truncated |= self.dropped();
        Ok(executed)
    }

    /// The approximate size of the last event in memory, in bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Whether events were dropped because the budget of [`Interpreter::with_memory`] was used up.
    pub fn dropped(&self) -> bool {
        self.dropped
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
            // Only an incomplete line is left here. Lines after one that is dropped are kept.
            if !self.received.resize(self.lines.len()) {
                self.dropped = true;
                self.lines.skip();
            }
            let Some(bytes) = self.next_bytes().await? else { return self.last_line() };
            if !self.lines.push(&bytes) {
                return Err(self.too_large());
            }
        }
    }

    /// Handles the clean end of the body. Some servers send no end event.
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
        if !self.received.resize(line.len() + self.weight) {
            self.dropped = true;
            return Ok(Line::Nothing);
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
                    // Checked first, because a program that prints endlessly always has data ready.
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
