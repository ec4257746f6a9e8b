//! The event stream of a process, and attaching to a running process.

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::process_selector::Selector;
use isopod_wire::rpc::process::{ConnectRequest, ConnectResponse, ProcessEvent, ProcessSelector, StartResponse};

use super::event::parse_event;
use super::rpc::MessageStream;
use super::{Event, Guest, GuestError, ProcessHandle};

/// A process and its events. A slow reader slows the process down; nothing is dropped.
///
/// Dropping it leaves the process running.
#[derive(Debug)]
pub struct Process {
    events: Events,
    handle: ProcessHandle,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The start event was read, but not returned yet.
    Starting,
    Running,
    Ended,
}

impl Process {
    pub(super) async fn begin(guest: &Guest, mut events: Events) -> Result<Self, GuestError> {
        let http = &guest.caller.http;
        match http.within(http.timeout(), events.next()).await? {
            Some(Event::Started(pid)) => {
                let handle = ProcessHandle::new(guest.clone(), pid);
                Ok(Self { events, handle, state: State::Starting })
            }
            other => Err(GuestError::Protocol(format!("a process began with {other:?}"))),
        }
    }

    /// Its pid inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.handle.pid()
    }

    /// Returns a handle for input and signals, which can be used while another task reads its events.
    pub fn handle(&self) -> ProcessHandle {
        self.handle.clone()
    }

    /// Returns the next event, or `None` after [`Event::End`]. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Code::DeadlineExceeded`](super::Code::DeadlineExceeded) if the process's timeout expired;
    /// [`GuestError::Transport`] if the stream broke. Then the process may still run, and [`Guest::connect`] attaches
    /// to it again.
    pub async fn next(&mut self) -> Result<Option<Event>, GuestError> {
        if self.state == State::Starting {
            self.state = State::Running;
            return Ok(Some(Event::Started(self.pid())));
        }
        if self.state == State::Ended {
            return Ok(None);
        }
        let next = self.events.next().await;
        if !matches!(next, Ok(Some(Event::Started(_) | Event::Stdout(_) | Event::Stderr(_) | Event::Pty(_)))) {
            self.state = State::Ended;
        }
        match next? {
            Some(event) => Ok(Some(event)),
            None => Err(GuestError::Protocol("the event stream ended without an end event".to_owned())),
        }
    }
}

impl Guest {
    /// Attaches to a running process. The stream continues with output that was not delivered yet.
    ///
    /// # Errors
    /// [`Code::NotFound`](super::Code::NotFound) if there is none, or it ended some time ago.
    pub async fn connect(&self, pid: u32) -> Result<Process, GuestError> {
        self.connect_to(Selector::Pid(pid)).await
    }

    /// Attaches to a process by its tag.
    ///
    /// # Errors
    /// [`Code::NotFound`](super::Code::NotFound) if there is none.
    pub async fn connect_tag(&self, tag: impl Into<String>) -> Result<Process, GuestError> {
        self.connect_to(Selector::Tag(tag.into())).await
    }

    async fn connect_to(&self, selector: Selector) -> Result<Process, GuestError> {
        let process = ProcessSelector { selector: Some(selector) };
        let request = ConnectRequest { process: MessageField::some(process) };
        let messages =
            self.caller.stream::<_, ConnectResponse>("/process.Process/Connect", self.options(), &request).await?;
        Process::begin(self, messages.into()).await
    }
}

/// The two calls that stream events differ only in the type of their messages.
#[derive(Debug)]
pub(super) enum Events {
    Started(MessageStream<StartResponse>),
    Connected(MessageStream<ConnectResponse>),
}

impl Events {
    async fn next(&mut self) -> Result<Option<Event>, GuestError> {
        loop {
            let Some(event) = self.next_message().await? else { return Ok(None) };
            if let Some(event) = parse_event(event) {
                return Ok(Some(event));
            }
        }
    }

    async fn next_message(&mut self) -> Result<Option<ProcessEvent>, GuestError> {
        Ok(match self {
            Self::Started(messages) => messages.next().await?.map(|message| message.event.into_option()),
            Self::Connected(messages) => messages.next().await?.map(|message| message.event.into_option()),
        }
        .map(Option::unwrap_or_default))
    }
}

impl From<MessageStream<StartResponse>> for Events {
    fn from(messages: MessageStream<StartResponse>) -> Self {
        Self::Started(messages)
    }
}

impl From<MessageStream<ConnectResponse>> for Events {
    fn from(messages: MessageStream<ConnectResponse>) -> Self {
        Self::Connected(messages)
    }
}
