//! The rules of a cluster of servers that share a database, as pure functions: no input and output, no clock and no
//! random numbers of their own. Callers pass the time and the numbers in.
//!
//! - [`membership`]: which server may decide about its sandboxes, and when others may give it up.
//! - [`place`]: on which server a new sandbox goes.
//!
//! A simulation (`simulation`, in tests only) runs both through thousands of random schedules of failures.

pub mod membership;
pub mod place;
#[cfg(test)]
mod simulation;
