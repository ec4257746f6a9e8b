//! One sandbox's guest: its processes, files and watches.
//!
//! A [`Guest`] is a cheap handle: clone it freely, use it from many tasks. It opens connections when it needs them and
//! keeps a few for the next call. Nothing is bound to a connection: a process goes on when its stream breaks, and can be
//! joined again with [`Guest::connect`].

mod control;
mod entries;
mod error;
mod event;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod health;
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
/// Three times the interval at which a guest is asked to show that it lives.
const SILENCE: Duration = Duration::from_secs(150);

/// Speaks with the daemon inside one sandbox.
#[derive(Clone, Debug)]
pub struct Guest {
    caller: Caller,
    /// In whose name calls are made that name nobody; none means the sandbox's default user.
    user: Option<String>,
}

impl Guest {
    /// The guest behind a Unix socket of this machine.
    pub fn over_unix(path: impl Into<PathBuf>) -> Self {
        let base = "http://localhost".parse().expect("it is a URL");
        Self::over_http(Http::new(Connector::unix(path), base, HeaderMap::new(), REQUEST_TIMEOUT))
    }

    /// The guest at the other end of a connector, without a server in between.
    pub fn over(connector: Connector) -> Self {
        let base = "http://localhost".parse().expect("it is a URL");
        Self::over_http(Http::new(connector, base, HeaderMap::new(), REQUEST_TIMEOUT))
    }

    /// The guest of a sandbox behind an edge: requests carry the headers that an edge routes by.
    pub fn through_edge(connector: Connector, edge: BaseUrl, sandbox: &SandboxId) -> Self {
        let mut http = Http::new(connector, edge, HeaderMap::new(), REQUEST_TIMEOUT);
        http.route_to(sandbox, isopod_wire::GUEST_PORT);
        Self::over_http(http)
    }

    /// The guest that an HTTP client leads to.
    pub fn over_http(http: Http) -> Self {
        let silence = (!http.notices_a_lost_peer()).then_some(SILENCE);
        Self { caller: Caller::new(http, silence), user: None }
    }

    /// Shows this token with every request.
    ///
    /// # Errors
    /// When it has characters that cannot stand in a header.
    pub fn with_access_token(mut self, token: &str) -> Result<Self, InvalidHeaderValue> {
        self.caller.http.show_tokens(Some(token), None)?;
        Ok(self)
    }

    /// Makes calls in this user's name where nothing else is said.
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Chooses how messages are written.
    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.caller.set_codec(codec);
        self
    }

    /// How long a call may take, and how long the first message of a stream may. The default is a minute.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.caller.http.set_timeout(timeout);
        self
    }

    /// How long a stream may say nothing before it counts as dead. Guests show that they live every 50 seconds.
    ///
    /// The default is 150 seconds, and no limit over a Unix socket, whose peer cannot vanish unnoticed.
    pub fn with_silence_limit(mut self, limit: Option<Duration>) -> Self {
        self.caller.silence = limit;
        self
    }

    /// How large the reply of one call may be, in bytes. The default is 256 MiB, which a listing of a large tree may need.
    pub fn with_reply_limit(mut self, limit: usize) -> Self {
        self.caller.max_reply = limit;
        self
    }

    fn options(&self) -> Options<'_> {
        Options { user: self.user.as_deref(), deadline: None }
    }
}
