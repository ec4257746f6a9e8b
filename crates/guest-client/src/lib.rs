//! Clients for the programs inside one sandbox, over a Unix socket on this machine or through a server's edge.
//!
//! - [`guest`]: processes, terminals, files, watches
//! - [`interpreter`]: code that runs and keeps its state
//! - [`transport`]: HTTP over any byte stream, for these two and for clients of servers
//!
//! Replies of a sandbox are not trusted: each has a limit of size and of time. Streams end with a result or with an
//! error, never silently. A slow reader slows the sender down. Nothing here reads the environment. If a handle is
//! dropped, its process continues, except code of the interpreter, which is interrupted.
//!
//! ```no_run
//! use isopod_guest_client::Guest;
//!
//! # async fn example() -> Result<(), isopod_guest_client::GuestError> {
//! let guest = Guest::over_unix("/run/guest.sock");
//! let output = guest.run("echo hello; exit 3").await?;
//! assert_eq!((output.text().as_str(), output.ended.exit_code), ("hello\n", 3));
//! # Ok(())
//! # }
//! ```

pub mod checkpoint;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod guest;
pub mod interpreter;
mod memory;
pub mod transport;

pub use guest::{Guest, GuestError};
pub use interpreter::Interpreter;
pub use memory::{MemoryBudget, Reservation};
pub use transport::{ByteStream, Connector, Dial, DialFuture, Origin, TransportError};
