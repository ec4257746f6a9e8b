//! The subject of an audited request.

use isopod_store::service::ServiceSandbox;

/// The subject of a request. Its handler returns it with the response.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    pub sandbox: Option<String>,
    pub agent: Option<String>,
    pub task: Option<String>,
}

impl Subject {
    pub fn sandbox(id: impl Into<String>) -> Self {
        Self { sandbox: Some(id.into()), ..Self::default() }
    }

    /// Adds what the other subject knows.
    pub fn merge(&mut self, other: &Self) {
        let known = |mine: &mut Option<String>, theirs: &Option<String>| *mine = theirs.clone().or(mine.take());
        known(&mut self.sandbox, &other.sandbox);
        known(&mut self.agent, &other.agent);
        known(&mut self.task, &other.task);
    }
}

impl From<&ServiceSandbox> for Subject {
    fn from(row: &ServiceSandbox) -> Self {
        Self { sandbox: Some(row.id.clone()), agent: row.agent.clone(), task: row.task.clone() }
    }
}
