//! The states of a sandbox in the store.
//!
//! ```text
//! Creating ──► Running ──► Pausing ──► Paused(mode)
//!     │         │    ▲                    │
//!     │         │    └──── Resuming ◄─────┘
//!     ▼         ▼
//!   Ended ◄── Ending        (from every state; each end has a reason)
//! ```
//! The transitional states are intents. They are written before the node is asked, so that if the server dies in
//! between, the next one knows what was going on.

use isopod_wire::node::{EndReason, PauseMode};

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The row is written, and the node is creating the sandbox.
    Creating,
    Running,
    /// The node is pausing it.
    Pausing(PauseMode),
    /// It is paused and can be resumed.
    Paused(PauseMode),
    /// The node is resuming it.
    Resuming(PauseMode),
    /// The node is removing it.
    Ending(Ending),
    Ended(Ending),
}

/// Why a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A client or the operator asked for it.
    Killed,
    /// Its timeout expired.
    Timeout,
    /// The node could not create it.
    CreateFailed,
    /// The server died while it was being created.
    CreateInterrupted,
    /// The node does not have it and does not know why.
    Lost,
    /// Its guest or init died.
    GuestDied,
    /// The kernel killed its init because of a lack of memory.
    OutOfMemory,
    HostRebooted,
    /// The process that owned it is gone.
    OwnerGone,
    /// Its guest runs, but nothing can reach it any more.
    GuestUnreachable,
}

impl State {
    /// The name of the state in the API. Sandboxes that are being created or removed are not shown.
    pub fn shown(self) -> Option<&'static str> {
        match self {
            Self::Running | Self::Resuming(_) => Some("running"),
            Self::Pausing(_) | Self::Paused(_) => Some("paused"),
            Self::Creating | Self::Ending(_) | Self::Ended(_) => None,
        }
    }

    /// Whether the sandbox counts towards the team's limit of running sandboxes.
    pub fn takes_a_place(self) -> bool {
        matches!(self, Self::Creating | Self::Running | Self::Pausing(_) | Self::Resuming(_))
    }

    /// The three columns that store a state.
    pub fn columns(self) -> (&'static str, Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Creating => ("creating", None, None),
            Self::Running => ("running", None, None),
            Self::Pausing(mode) => ("pausing", Some(mode_text(mode)), None),
            Self::Paused(mode) => ("paused", Some(mode_text(mode)), None),
            Self::Resuming(mode) => ("resuming", Some(mode_text(mode)), None),
            Self::Ending(ending) => ("ending", None, Some(ending.text())),
            Self::Ended(ending) => ("ended", None, Some(ending.text())),
        }
    }

    /// Parses the three columns.
    pub fn from_columns(state: &str, mode: Option<&str>, ending: Option<&str>) -> Option<Self> {
        let mode = || mode.and_then(parse_mode);
        let ending = || ending.and_then(Ending::parse);
        match state {
            "creating" => Some(Self::Creating),
            "running" => Some(Self::Running),
            "pausing" => mode().map(Self::Pausing),
            "paused" => mode().map(Self::Paused),
            "resuming" => mode().map(Self::Resuming),
            "ending" => ending().map(Self::Ending),
            "ended" => ending().map(Self::Ended),
            _ => None,
        }
    }
}

fn mode_text(mode: PauseMode) -> &'static str {
    match mode {
        PauseMode::Memory => "memory",
        PauseMode::Filesystem => "filesystem",
    }
}

fn parse_mode(text: &str) -> Option<PauseMode> {
    [PauseMode::Memory, PauseMode::Filesystem].into_iter().find(|mode| mode_text(*mode) == text)
}

impl Ending {
    pub(crate) const ALL: [Self; 10] = [
        Self::Killed,
        Self::Timeout,
        Self::CreateFailed,
        Self::CreateInterrupted,
        Self::Lost,
        Self::GuestDied,
        Self::OutOfMemory,
        Self::HostRebooted,
        Self::OwnerGone,
        Self::GuestUnreachable,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Timeout => "timeout",
            Self::CreateFailed => "create_failed",
            Self::CreateInterrupted => "create_interrupted",
            Self::Lost => "lost",
            Self::GuestDied => "guest_died",
            Self::OutOfMemory => "out_of_memory",
            Self::HostRebooted => "host_rebooted",
            Self::OwnerGone => "owner_gone",
            Self::GuestUnreachable => "guest_unreachable",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.text() == text)
    }
}

impl From<EndReason> for Ending {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Killed => Self::Killed,
            EndReason::GuestDied => Self::GuestDied,
            EndReason::OutOfMemory => Self::OutOfMemory,
            EndReason::HostRebooted => Self::HostRebooted,
            EndReason::OwnerGone => Self::OwnerGone,
            EndReason::GuestUnreachable => Self::GuestUnreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_state;

    proptest! {
        #[test]
        fn a_stored_state_is_read_back(state in any_state()) {
            let (text, mode, ending) = state.columns();
            prop_assert_eq!(State::from_columns(text, mode, ending), Some(state));
        }
    }

    #[test]
    fn columns_that_make_no_state_are_refused() {
        assert_eq!(State::from_columns("paused", None, None), None);
        assert_eq!(State::from_columns("ended", None, Some("boredom")), None);
        assert_eq!(State::from_columns("dancing", None, None), None);
    }
}
