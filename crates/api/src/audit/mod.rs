//! The audit log: who did what to which sandbox, in a hash chain that nobody can change unnoticed.
//! [`audited`](crate::audited) and the service write requests into it, each in front of its own routes.

mod recorder;
mod subject;

pub use recorder::{AuditDown, Recorder};
pub use subject::Subject;
