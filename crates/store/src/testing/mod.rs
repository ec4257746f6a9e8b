//! Support for tests of this crate and of those above it: databases, and any state of a sandbox.

mod any_state;
pub mod postgres;
pub mod redis;

pub use any_state::any_state;
