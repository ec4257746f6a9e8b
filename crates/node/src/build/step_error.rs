//! Errors of a build, before the phase and the line are known.

use isopod_wire::build::BuildFailure;

/// A failure of a build.
#[derive(Debug)]
pub(crate) struct StepError {
    pub(super) failure: BuildFailure,
    pub(super) message: String,
}

impl StepError {
    /// The request, the file or the context is wrong.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { failure: BuildFailure::Invalid, message: message.into() }
    }

    /// A step failed.
    pub(super) fn step(message: impl Into<String>) -> Self {
        Self { failure: BuildFailure::Step, message: message.into() }
    }

    /// The base is not available.
    pub(super) fn image(message: impl Into<String>) -> Self {
        Self { failure: BuildFailure::Image, message: message.into() }
    }

    /// Adds what was being done to the message.
    pub(super) fn within(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// An internal failure. The message has the whole chain of causes, because the user who builds is the one to read
    /// it.
    pub(super) fn internal(what: &str, error: impl std::error::Error) -> Self {
        Self { failure: BuildFailure::Internal, message: format!("could not {what}: {}", chain(&error)) }
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let next = source.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = source.source();
    }
    text
}
