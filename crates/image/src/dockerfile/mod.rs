//! Dockerfiles: from text to stages of instructions, each with its line.
//!
//! Nothing is expanded here, because variables depend on the image that a stage starts from: [`expand`] does it with the
//! variables of the moment. Every error has the line that it is about.

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

/// What is wrong with a Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DockerfileError {
    /// Counted from 1.
    pub line: u32,
    /// What is wrong there.
    pub message: String,
}

impl DockerfileError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// A Dockerfile that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dockerfile {
    /// What a continued line ends in, and what takes a `$` its meaning.
    pub escape: char,
    /// `ARG`s before the first `FROM`: they count in `FROM` lines.
    pub global_args: Vec<Located>,
    /// At least one.
    pub stages: Vec<Stage>,
}

/// What begins with a `FROM`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The line of its `FROM`.
    pub line: u32,
    /// An image, or the name of an earlier stage; not expanded.
    pub image: String,
    /// Its own name, in lower case.
    pub name: Option<String>,
    /// `--platform`, not expanded.
    pub platform: Option<String>,
    /// In order.
    pub instructions: Vec<Located>,
}

/// An instruction and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The line on which it begins.
    pub line: u32,
    /// As written, for logs: continued lines are joined.
    pub text: String,
    /// What it says.
    pub instruction: Instruction,
}

impl Dockerfile {
    /// Reads a Dockerfile.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, DockerfileError> {
        let (escape, lines) = logical_lines(text)?;
        let mut file = Self { escape, global_args: Vec::new(), stages: Vec::new() };
        for line in lines {
            file.add(line)?;
        }
        if file.stages.is_empty() {
            return Err(DockerfileError::new(1, "there is no FROM"));
        }
        Ok(file)
    }

    /// The stage of that name or number; the last one when none is named.
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
            (_, None) => return Err(DockerfileError::new(line.number, "only ARG may stand before the first FROM")),
            (instruction, Some(stage)) => {
                stage.instructions.push(Located { line: located.line, text: located.text, instruction });
            }
        }
        Ok(())
    }
}

/// Reads one instruction that stands alone: what an image's `ONBUILD` says.
///
/// # Errors
/// When it is no instruction.
pub fn parse_trigger(text: &str) -> Result<Located, DockerfileError> {
    let (escape, lines) = logical_lines(text)?;
    match &lines[..] {
        [line] => instruction::parse(line, escape),
        _ => Err(DockerfileError::new(1, "an ONBUILD instruction is one line")),
    }
}

#[cfg(test)]
mod tests;
