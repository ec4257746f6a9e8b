//! One sandbox per holder: created once, kept, replaced when it is gone, and ended.
//!
//! A holder asks for a sandbox by a name of its own. It is a session key of E2B's API, a run, an execution of the
//! toolkit, or a sandbox of the service. [`Leases`] keeps the promises that all of them need. A [`Holder`] defines how
//! to reach its records and its sandbox.
//!
//! - However many callers race, one sandbox is created.
//! - A cancelled caller leaves nothing half made, because the work continues without it.
//! - The record is opened before a sandbox is created. A sandbox that cannot be recorded is removed.
//! - A caller that waits for a sandbox while the lease ends gets an error, not a new sandbox.
//!
//! ```text
//! hold ──▶ remembered and alive? ──yes──▶ leased
//!              │ no
//!              ▼ alone
//!          open the record ──▶ find a live sandbox, or create one ──▶ record it ──▶ leased
//!                                                                        └ failed: discard it
//! ```

mod end;
mod entries;
mod hold;
mod holder;
#[cfg(test)]
mod tests;

pub use entries::Leases;
pub use holder::{EndLease, Holder, LeaseEnded, LeaseName, Leased, Opened};
