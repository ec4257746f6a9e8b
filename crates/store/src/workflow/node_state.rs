//! The state of a node in the store and the API.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    Pending,
    /// Waits for a person's approval.
    Waiting,
    Running,
    Done,
    Failed,
}

impl NodeState {
    pub fn text(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "paused",
            Self::Running => "running",
            Self::Done => "success",
            Self::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Waiting, Self::Running, Self::Done, Self::Failed]
            .into_iter()
            .find(|state| state.text() == text)
    }
}
