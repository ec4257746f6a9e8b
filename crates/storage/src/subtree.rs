//! The parts of the workspace that can be shown alone.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of the directory of an execution or a volume: letters, digits, `.`, `_`, `-`, but no leading dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExecutionName(String);

/// The text is not a valid name of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of an execution has 1 to 128 letters, digits, '.', '_' and '-', and does not start with a dot")]
pub struct InvalidExecutionName;

impl ExecutionName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for ExecutionName {
    type Err = InvalidExecutionName;

    fn from_str(text: &str) -> Result<Self, InvalidExecutionName> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let valid = (1..=128).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(good);
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidExecutionName) }
    }
}

impl TryFrom<String> for ExecutionName {
    type Error = InvalidExecutionName;

    fn try_from(text: String) -> Result<Self, InvalidExecutionName> {
        text.parse()
    }
}

impl From<ExecutionName> for String {
    fn from(name: ExecutionName) -> Self {
        name.0
    }
}

/// The kinds of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubtreeKind {
    Executions,
    Volumes,
}

impl SubtreeKind {
    /// The directory that contains all directories of this kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Executions => "executions",
            Self::Volumes => "volumes",
        }
    }
}

/// One directory of the workspace, such as `executions/e1`, with everything below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subtree {
    pub kind: SubtreeKind,
    pub name: ExecutionName,
}

/// Why a text is not a valid part of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubtree {
    #[error("a part of the workspace is executions/<id> or volumes/<id>")]
    Kind,
    #[error(transparent)]
    Name(#[from] InvalidExecutionName),
}

impl Subtree {
    pub fn execution(name: ExecutionName) -> Self {
        Self { kind: SubtreeKind::Executions, name }
    }
}

impl FromStr for Subtree {
    type Err = InvalidSubtree;

    fn from_str(text: &str) -> Result<Self, InvalidSubtree> {
        let (kind, name) = text.split_once('/').ok_or(InvalidSubtree::Kind)?;
        let kind = match kind {
            "executions" => SubtreeKind::Executions,
            "volumes" => SubtreeKind::Volumes,
            _ => return Err(InvalidSubtree::Kind),
        };
        Ok(Self { kind, name: name.parse()? })
    }
}

impl fmt::Display for Subtree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.name(), self.name.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for bad in ["", ".", "..", ".hidden", "a/b", "../a", "a\0", "a b", "ü", &"a".repeat(129)] {
            assert!(bad.parse::<ExecutionName>().is_err(), "{bad:?}");
            assert!(format!("executions/{bad}").parse::<Subtree>().is_err(), "{bad:?}");
            assert!(serde_json::from_value::<ExecutionName>(bad.into()).is_err(), "{bad:?}");
        }
        for good in ["a", "exec_1-2.3", &"a".repeat(128)] {
            assert!(good.parse::<ExecutionName>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_part_is_written_as_it_is_read() {
        for text in ["executions/e1", "volumes/v.2"] {
            assert_eq!(text.parse::<Subtree>().unwrap().to_string(), text);
        }
        for bad in ["", "executions", "other/x", "executions/", "/executions/x", "executions/a/b"] {
            assert!(bad.parse::<Subtree>().is_err(), "{bad:?}");
        }
    }
}
