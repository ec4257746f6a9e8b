//! The streams that a process prints to.

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Pty,
}
