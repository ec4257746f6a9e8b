//! A whole platform inside a test: a node with real isolation in its own state directory, sandboxes, and a final check
//! that nothing is left on the host.
//!
//! ```no_run
//! # async fn story() {
//! let platform = isopod_testkit::Platform::start("/path/to/isopod").await;
//! let sandbox = platform.sandbox().await;
//! assert_eq!(sandbox.sh("echo hi").await.stdout(), "hi\n");
//! platform.finish().await;
//! # }
//! ```

mod binary;
mod output;
mod platform;
mod residue;
mod sandbox;
mod shared_base;

pub use binary::{Finished, Isopod};
pub use output::ShellOutput;
pub use platform::{Platform, StateDir, criu, require_root, spec};
pub use residue::{Residue, assert_nothing_left};
pub use sandbox::TestSandbox;
