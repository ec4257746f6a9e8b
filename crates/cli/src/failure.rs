//! Formats errors: what failed, why, and what to do about it.

use std::error::Error;
use std::process::ExitCode;

/// The program's own failures, apart from those of commands it runs.
const OWN_FAILURE: u8 = 125;

/// An error with advice.
#[derive(Debug)]
pub(crate) struct Hint {
    message: String,
    hint: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Hint {
    #[expect(clippy::new_ret_no_self, reason = "a hint is only ever used as the error that it is part of")]
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), hint: hint.into(), source: None })
    }

    /// Advice about an error, under words that say what was being done.
    pub(crate) fn because(
        message: impl Into<String>,
        source: impl Error + Send + Sync + 'static,
        hint: impl Into<String>,
    ) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), hint: hint.into(), source: Some(Box::new(source)) })
    }
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Hint {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| -> &(dyn Error + 'static) { source.as_ref() })
    }
}

/// Prints the whole chain of causes, once.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    say_error!("error: {}", indented(error));
    for cause in error.chain().skip(1) {
        say_error!("  because: {}", indented(cause));
    }
    if let Some(hint) = error.chain().find_map(|cause| cause.downcast_ref::<Hint>()) {
        say_error!("hint: {}", indented(&hint.hint));
    }
    ExitCode::from(OWN_FAILURE)
}

/// Errors hold words of servers and names of files. None of their lines can be taken for one of ours.
fn indented(text: impl std::fmt::Display) -> String {
    text.to_string().replace('\n', "\n      ")
}
