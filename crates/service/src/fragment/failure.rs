//! Says in which step of a fragment an error happened.

use crate::ServiceError;
use crate::backend::{BackendError, ErrorKind, Place};
use crate::failed_step::{FailedStep, Step};

impl ServiceError {
    /// Says in which step of a fragment it happened. What the sandbox refused is the fragment's fault.
    pub(crate) fn in_step(self, step: Step) -> Self {
        match self {
            Self::Backend(error) if step != Step::Create && is_of_sandbox(&error) => {
                Self::StepFailed(Box::new(FailedStep::new(step, error.to_string())))
            }
            failed @ (Self::StepFailed(_) | Self::InStep { .. }) => failed,
            other => Self::InStep { step, error: Box::new(other) },
        }
    }
}

/// Whether the sandbox refused, or answered with nonsense, as a program that took the guest's place can.
fn is_of_sandbox(error: &BackendError) -> bool {
    match error {
        BackendError::Internal { place, .. } => *place == Place::Sandbox,
        error => {
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Quota)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sandbox_refuses_is_the_fragments_fault_and_what_the_server_refuses_is_not() {
        let missing = || ServiceError::from(BackendError::not_found("no such thing"));
        assert!(matches!(missing().in_step(Step::Write), ServiceError::StepFailed(_)));
        let unknown_template = missing().in_step(Step::Create);
        assert!(matches!(unknown_template, ServiceError::InStep { step: Step::Create, .. }));
        assert_eq!(unknown_template.in_step(Step::Run).to_string(), "no such thing", "the first step counts");
        let broken = ServiceError::from(BackendError::internal("broken")).in_step(Step::Run);
        assert!(matches!(broken, ServiceError::InStep { step: Step::Run, .. }));
    }
}
