//! What goes wrong in a build, before it is known in which phase and on which line.

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

    /// A step ended with an error.
    pub(super) fn step(message: impl Into<String>) -> Self {
        Self { failure: BuildFailure::Step, message: message.into() }
    }

    /// The base cannot be had.
    pub(super) fn image(message: impl Into<String>) -> Self {
        Self { failure: BuildFailure::Image, message: message.into() }
    }

    /// The same failure, with what was being done.
    pub(super) fn within(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Something broke on this side. The whole chain of causes is told: whoever builds is the one to read it.
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
