//! The owners of sessions. Ids are validated once, here, because they become parts of paths and of keys in Redis.

use std::fmt;

use crate::TeamId;

/// The kind of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    Run,
    Task,
    Execution,
}

/// An owner: a run, a task or an execution with its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    kind: OwnerKind,
    id: String,
}

/// An owner and its team. Each team chooses its own ids, so two teams may use the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TeamOwner {
    pub team: TeamId,
    pub owner: Owner,
}

impl TeamOwner {
    pub fn new(team: &TeamId, owner: &Owner) -> Self {
        Self { team: team.clone(), owner: owner.clone() }
    }
}

/// The id is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id has 1 to 128 letters, digits, dots, dashes or underscores and starts with a letter or a digit")]
pub struct OwnerIdError;

/// Words that the API's own paths use in the place of an id.
const TAKEN: [&str; 7] = ["artifacts", "library", "tools", "start", "state", "signatures", "runs"];
const MAX_LENGTH: usize = 128;

impl OwnerKind {
    pub const ALL: [Self; 3] = [Self::Run, Self::Task, Self::Execution];

    pub fn text(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Task => "task",
            Self::Execution => "execution",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.text() == text)
    }
}

impl Owner {
    pub fn parse(kind: OwnerKind, id: &str) -> Result<Self, OwnerIdError> {
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins_well = id.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_valid = begins_well && id.len() <= MAX_LENGTH && id.bytes().all(is_fine) && !id.contains("..");
        match is_valid && !TAKEN.contains(&id) {
            true => Ok(Self { kind, id: id.to_owned() }),
            false => Err(OwnerIdError),
        }
    }

    pub fn run(id: &str) -> Result<Self, OwnerIdError> {
        Self::parse(OwnerKind::Run, id)
    }

    pub fn kind(&self) -> OwnerKind {
        self.kind
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The session key in the sandbox's row. The store allows one live sandbox for each key.
    pub fn session_key(&self) -> String {
        format!("{RESERVED}{self}")
    }
}

/// The prefix of our own session keys. Clients cannot use it.
pub const RESERVED: &str = "isopod:";

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.text(), self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_that_could_lead_elsewhere_are_refused() {
        let long = "a".repeat(129);
        for bad in ["", ".", "..", "a/b", "../x", "a..b", "-a", "_a", "a b", "a\0", "é", "a%2f", "library", &long] {
            assert_eq!(Owner::run(bad), Err(OwnerIdError), "{bad:?}");
        }
        for good in ["a", "run-1", "550e8400-e29b-41d4-a716-446655440000", "A.b_c", &long[..128]] {
            assert!(Owner::run(good).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_id_is_one_plain_part_of_a_path(id in ".{0,20}") {
            if Owner::run(&id).is_ok() {
                let path = std::path::Path::new(&id);
                prop_assert_eq!(path.components().count(), 1);
                prop_assert!(matches!(path.components().next(), Some(std::path::Component::Normal(_))));
            }
        }
    }
}
