//! Who may decide about a server's sandboxes.
//!
//! ```text
//!              renewed                  not renewed in time           the grace is over
//!           ┌──────────┐
//! join ──▶ present ◀───┘ ──────────────▶ unreachable ────────────────▶ given up
//!   ▲                                        │                            │
//!   └──────────── join, with a new epoch ────┴────────────────────────────┘
//! ```
//!
//! The database has the truth, and judges by its own clock ([`Member`]). A server knows only what it was told, and
//! judges by its own clock, always a little earlier than the database does ([`OwnLease`]). So a server that hears nothing stops
//! by itself, before anybody else may act in its place.
//!
//! Each time a server joins, it gets a higher epoch, and each of its writes names its epoch. A write that was sent before
//! the server was given up, and arrives later, changes nothing.

mod member;
mod own_lease;
mod time;

pub use member::{GiveUpRefused, LeaseLost, Member, Standing};
pub use own_lease::{NextStep, OwnLease};
pub use time::{DatabaseTime, Epoch, ServerTime, Terms};
