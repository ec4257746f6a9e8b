//! Parses Dockerfiles into stages of instructions, each with its line number.
//!
//! Nothing is expanded here, because variables depend on the image that a stage starts from. [`expand`] does this
//! later, with the variables at that point. Every error has a line number.

mod expand;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod heredoc;
mod ignore;
mod instruction;
mod lines;
mod words;

pub use expand::{ExpandError, expand};
pub use heredoc::Heredoc;
pub use ignore::{IgnoreRules, MAX_IGNORE_BYTES, MAX_RULES, PatternError, Patterns, read_pattern};
pub use instruction::{Command, CopyFlags, Instruction, Variable};
pub use words::{Pattern, glob_matches, split_words};

use lines::{Logical, logical_lines};

/// An error in a Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DockerfileError {
    /// The line, counted from 1.
    pub line: u32,
    pub message: String,
}

impl DockerfileError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// A parsed Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dockerfile {
    /// The character that continues a line, and that escapes a `$`.
    pub escape: char,
    /// The `ARG`s before the first `FROM`. They are visible in `FROM` lines.
    pub global_args: Vec<Located>,
    /// The stages, at least one.
    pub stages: Vec<Stage>,
}

/// A `FROM` and the instructions after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The line of its `FROM`.
    pub line: u32,
    /// An image, or the name of an earlier stage. Not expanded.
    pub image: String,
    /// The name of this stage, in lowercase.
    pub name: Option<String>,
    /// The value of `--platform`, not expanded.
    pub platform: Option<String>,
    pub instructions: Vec<Located>,
}

/// An instruction and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The line on which it starts.
    pub line: u32,
    /// The text as written, for logs. Continued lines are joined.
    pub text: String,
    pub instruction: Instruction,
}

impl Dockerfile {
    /// Parses a Dockerfile.
    ///
    /// # Errors
    /// The first error in it.
    pub fn parse(text: &str) -> Result<Self, DockerfileError> {
        let (escape, lines) = logical_lines(text)?;
        let mut file = Self { escape, global_args: Vec::new(), stages: Vec::new() };
        for line in lines {
            file.add(line)?;
        }
        if file.stages.is_empty() {
            return Err(DockerfileError::new(1, "the Dockerfile has no FROM instruction"));
        }
        Ok(file)
    }

    /// The stage with that name or number, or the last one if none is given.
    pub fn stage(&self, wanted: Option<&str>) -> Option<usize> {
        let Some(wanted) = wanted else { return self.stages.len().checked_sub(1) };
        let lower = wanted.to_lowercase();
        let by_name = self.stages.iter().rposition(|stage| stage.name.as_deref() == Some(&lower));
        by_name.or_else(|| wanted.parse().ok().filter(|number| *number < self.stages.len()))
    }

    fn add(&mut self, line: Logical) -> Result<(), DockerfileError> {
        let located = instruction::parse(&line, self.escape)?;
        match (located.instruction, self.stages.last_mut()) {
            (Instruction::From { image, name, platform }, _) => {
                let stage = Stage { line: line.number, image, name, platform, instructions: Vec::new() };
                self.stages.push(stage);
            }
            (instruction @ Instruction::Arg(_), None) => {
                self.global_args.push(Located { line: located.line, text: located.text, instruction });
            }
            (_, None) => return Err(DockerfileError::new(line.number, "only ARG may come before the first FROM")),
            (instruction, Some(stage)) => {
                stage.instructions.push(Located { line: located.line, text: located.text, instruction });
            }
        }
        Ok(())
    }
}

/// Parses a single instruction, for example from an image's `ONBUILD`.
///
/// # Errors
/// If it is not a valid instruction.
pub fn parse_trigger(text: &str) -> Result<Located, DockerfileError> {
    let (escape, lines) = logical_lines(text)?;
    match &lines[..] {
        [line] => instruction::parse(line, escape),
        _ => Err(DockerfileError::new(1, "an ONBUILD instruction must be a single instruction")),
    }
}

#[cfg(test)]
mod tests;
