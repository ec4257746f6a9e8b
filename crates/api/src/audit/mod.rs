//! The audit: who did what to which sandbox, in a chain of lines that nobody can change unnoticed. Requests are put into it by
//! [`audited`](crate::audited) and by the service, each in front of its own routes.

mod recorder;
mod subject;

pub use recorder::{AuditDown, Recorder};
pub use subject::Subject;
