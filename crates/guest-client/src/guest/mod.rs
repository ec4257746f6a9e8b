//! The guest of one sandbox: its processes, files and watches.
//!
//! A [`Guest`] is a cheap handle: clone it freely, and use it from many tasks. It opens connections when it needs them
//! and keeps a few for the next call. Nothing is bound to a connection: if its stream breaks, a process continues, and
//! [`Guest::connect`] attaches to it again.

mod control;
mod entries;
mod error;
mod event;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod health;
mod output_tail;
mod process;
mod read_file;
mod rpc;
mod run;
mod start;
mod stream_stdin;
mod text;
mod tree;
mod watch_dir;
mod write_file;
mod write_files;

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderMap;
use http::header::InvalidHeaderValue;
use isopod_wire::SandboxId;

pub use control::{ProcessHandle, ProcessInfo, Signal};
pub use entries::{Entry, EntryKind};
pub use error::{Code, GuestError};
pub use event::{Ended, Event, Output};
pub use health::GuestMetrics;
pub use output_tail::{OutputLines, OutputTail};
pub use process::Process;
pub use read_file::Download;
pub use rpc::Codec;
pub use start::{PtySize, StartProcess};
pub use text::TextDecoder;
pub use tree::{Tree, TreeEntry};
pub use watch_dir::{Change, FileEvent, Watch, WatchDir};
pub use write_file::{Upload, WrittenFile};

use crate::transport::{BaseUrl, Connector, Http};
use rpc::{Caller, Options};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Three times the interval of the guest's keepalives.
const SILENCE: Duration = Duration::from_secs(150);

/// A client of the guest in one sandbox.
#[derive(Clone, Debug)]
pub struct Guest {
    caller: Caller,
    /// The default user of calls. `None` is the sandbox's default user.
    user: Option<String>,
}

impl Guest {
    /// Connects to a guest over a Unix socket on this machine.
    pub fn over_unix(path: impl Into<PathBuf>) -> Self {
        let base = "http://localhost".parse().expect("a constant URL is valid");
        Self::over_http(Http::new(Connector::unix(path), base, HeaderMap::new(), REQUEST_TIMEOUT))
    }

    /// Connects to a guest with this connector, without a server in between.
    pub fn over(connector: Connector) -> Self {
        let base = "http://localhost".parse().expect("a constant URL is valid");
        Self::over_http(Http::new(connector, base, HeaderMap::new(), REQUEST_TIMEOUT))
    }

    /// Connects to the guest of a sandbox through an edge, with the headers that the edge routes by.
    pub fn through_edge(connector: Connector, edge: BaseUrl, sandbox: &SandboxId) -> Self {
        let mut http = Http::new(connector, edge, HeaderMap::new(), REQUEST_TIMEOUT);
        http.route_to(sandbox, isopod_wire::GUEST_PORT);
        Self::over_http(http)
    }

    /// Connects to a guest with this HTTP client.
    pub fn over_http(http: Http) -> Self {
        let silence = (!http.notices_a_lost_peer()).then_some(SILENCE);
        Self { caller: Caller::new(http, silence), user: None }
    }

    /// Sends this token with every request.
    ///
    /// # Errors
    /// If it has characters that a header cannot contain.
    pub fn with_access_token(mut self, token: &str) -> Result<Self, InvalidHeaderValue> {
        self.caller.http.show_tokens(Some(token), None)?;
        Ok(self)
    }

    /// Sets the default user of calls.
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the message format.
    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.caller.set_codec(codec);
        self
    }

    /// Sets the time limit of a call, and of the first message of a stream. The default is a minute.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.caller.http.set_timeout(timeout);
        self
    }

    /// Sets how long a stream may be silent before it counts as dead. Guests send a keepalive every 50 seconds.
    ///
    /// The default is 150 seconds. Over a Unix socket it is unlimited, because its peer cannot vanish unnoticed.
    pub fn with_silence_limit(mut self, limit: Option<Duration>) -> Self {
        self.caller.silence = limit;
        self
    }

    /// Sets the maximum size of a reply in bytes. The default is 256 MiB, which the listing of a large tree may need.
    pub fn with_reply_limit(mut self, limit: usize) -> Self {
        self.caller.max_reply = limit;
        self
    }

    fn options(&self) -> Options<'_> {
        Options { user: self.user.as_deref(), deadline: None }
    }
}
