//! A client for sandboxes.
//!
//! [`guest`] speaks with the daemon inside one sandbox: over a Unix socket of this machine, or through a server's edge.
//! Nothing here reads the environment.

pub mod guest;
pub mod interpreter;
pub mod sandbox;
mod transport;

pub use guest::{Guest, GuestError};
pub use interpreter::Interpreter;
pub use isopod_wire::SandboxId;
pub use sandbox::{ApiError, Client, ClientConfig, NewSandbox, Sandbox};
pub use transport::{BaseUrl, ByteStream, Connector, Dial, DialFuture, Origin, TransportError, UrlError};
