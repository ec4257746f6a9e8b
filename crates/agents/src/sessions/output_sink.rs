//! Who sees the output of a tool call while it runs. The result has all of it afterwards.

/// What a piece of output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    Stdout,
    Stderr,
    /// A value that code showed, as text.
    Result,
}

/// Takes output as it comes. It must not block.
pub(crate) trait OutputSink: Send {
    fn write(&mut self, kind: OutputKind, text: &str);
}
