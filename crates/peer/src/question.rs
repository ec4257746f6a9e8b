//! What a request is about: the key by which its server is found.

use std::fmt;

use http::HeaderMap;
use isopod_api::Location;
use isopod_wire::SandboxId;
use isopod_wire::compat::{TEAM_HEADER, TOKEN_HEADER};
use sha2::{Digest as _, Sha256};

/// What a request is about, if its route tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    Sandbox(SandboxId),
    ServiceSandbox(String),
    Build(String),
    /// Something whose name each team chooses: its kind, its name, and a hash of the caller's credentials.
    Named(&'static str, String, [u8; 32]),
}

/// The headers that tell the caller's team.
const CREDENTIALS: [&str; 4] = ["x-api-key", "authorization", TOKEN_HEADER, TEAM_HEADER];

impl Question {
    /// The question of a request by its route. `None` if the name cannot be one.
    pub fn of(by: Location, name: &str, headers: &HeaderMap) -> Option<Self> {
        match by {
            // Old SDKs append a client id after a dash.
            Location::Sandbox => Some(Self::Sandbox(name.split('-').next()?.parse().ok()?)),
            Location::ServiceSandbox => Some(Self::ServiceSandbox(name.to_owned())),
            Location::Build => Some(Self::Build(name.to_owned())),
            Location::Named(kind) => Some(Self::Named(kind, name.to_owned(), hash_of_credentials(headers))),
            Location::NewSandbox => None,
        }
    }
}

fn hash_of_credentials(headers: &HeaderMap) -> [u8; 32] {
    let mut hash = Sha256::new();
    for name in CREDENTIALS {
        for value in headers.get_all(name) {
            hash.update(name);
            hash.update([0]);
            hash.update(value.as_bytes());
            hash.update([0]);
        }
    }
    hash.finalize().into()
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
            Self::ServiceSandbox(id) => write!(f, "sandbox {id} of the service"),
            Self::Build(id) => write!(f, "build {id}"),
            Self::Named(kind, name, _) => write!(f, "{kind} {name}"),
        }
    }
}
