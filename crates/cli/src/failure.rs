//! How a failure is told: what, why, and what to do about it.

use std::process::ExitCode;

/// The program's own failures, apart from those of commands it runs.
const OWN_FAILURE: u8 = 125;

/// An error with advice.
#[derive(Debug)]
pub(crate) struct Hint {
    message: String,
    hint: String,
}

impl Hint {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), hint: hint.into() })
    }
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hint {}

/// Prints the whole chain of causes, once.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    if let Some(hint) = error.chain().find_map(|cause| cause.downcast_ref::<Hint>()) {
        eprintln!("hint: {}", hint.hint);
    }
    ExitCode::from(OWN_FAILURE)
}
