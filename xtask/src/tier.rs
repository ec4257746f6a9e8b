//! What tests need to run.

use std::fmt;

/// Sorted by what they need, from nothing to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Functions and types. No root, no packages, less than a minute.
    Unit,
    /// Servers and clients over real sockets, with a fake in place of the node; real Redis and PostgreSQL.
    Fake,
    /// Real sandboxes, mounts and networks. Root.
    Real,
    /// The official SDKs and CLI, the seeds' flows, and templates in a browser, against a real server.
    Sdk,
    /// Scheduled faults and fuzzing.
    Stress,
}

impl Tier {
    pub(crate) const ALL: [Self; 5] = [Self::Unit, Self::Fake, Self::Real, Self::Sdk, Self::Stress];

    /// Parses the name in options and manifests.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Fake => "fake",
            Self::Real => "real",
            Self::Sdk => "sdk",
            Self::Stress => "stress",
        }
    }

    pub(crate) fn needs_root(self) -> bool {
        matches!(self, Self::Real | Self::Sdk | Self::Stress)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
