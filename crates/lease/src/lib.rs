//! One sandbox for a holder: made once, kept, replaced when it is gone, and ended.
//!
//! A holder is whoever asks for a sandbox by a name of its own: a session key of E2B's API, a run, an execution of the
//! toolkit, a sandbox of the service. [`Leases`] keeps the promises that all of them want; a [`Holder`] says how its records
//! and its sandbox are reached.
//!
//! - However many callers race, one sandbox is made.
//! - A caller that goes away leaves nothing half made, because the work goes on without it.
//! - The record comes first. A sandbox that can't be recorded is removed.
//! - Whoever waits for a sandbox while the lease is ended gets an error, not a new sandbox.
//!
//! ```text
//! hold ──▶ remembered and alive? ──yes──▶ leased
//!              │ no
//!              ▼ alone
//!          open the record ──▶ find a live sandbox, or create one ──▶ record it ──▶ leased
//!                                                                        └ failed: discard it
//! ```

mod end;
mod hold;
mod holder;
mod seats;
#[cfg(test)]
mod tests;

pub use holder::{EndLease, Holder, LeaseEnded, LeaseName, Leased, Opened};
pub use seats::Leases;
