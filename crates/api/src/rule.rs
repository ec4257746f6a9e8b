//! What a route declares of itself: what its caller must show, whether it changes something, and what the audit calls it.

use isopod_store::Scope;

/// What a caller must show to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A secret that opens this one thing: an upload link, a volume's token. The handler checks it.
    OwnToken,
    /// Any key. With an agent's key the handler shows only what belongs to that agent.
    AgentKey,
    /// A key that sees what its team has: team, read-only, admin.
    TeamView,
    /// A key that may do everything for its team: team, admin.
    TeamKey,
    /// An admin's key.
    AdminKey,
    /// An admin's key, or nothing if the operator opened the metrics.
    MetricsKey,
}

/// What a route declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What a caller must show.
    pub needs: Needs,
    /// Whether it changes something. Read-only keys never get to a route that does.
    pub changes: bool,
    /// What the audit calls it. None where the audit leaves it out.
    pub action: Option<&'static str>,
}

/// A route that only reads, and is not audited.
pub const fn reads(needs: Needs) -> Rule {
    Rule { needs, changes: false, action: None }
}

/// A route that changes something, or runs code. The audit calls it by `action`, a word that never changes.
pub const fn changes(needs: Needs, action: &'static str) -> Rule {
    Rule { needs, changes: true, action: Some(action) }
}

/// A route that would change something, and refuses to.
pub const fn refuses(needs: Needs) -> Rule {
    Rule { needs, changes: true, action: None }
}

impl Rule {
    /// Audited although it only reads.
    #[must_use]
    pub const fn audited_as(self, action: &'static str) -> Self {
        Self { action: Some(action), ..self }
    }

    pub(crate) fn admits(self, scope: &Scope) -> bool {
        match scope {
            Scope::Admin => true,
            Scope::Team => !matches!(self.needs, Needs::AdminKey | Needs::MetricsKey),
            Scope::Agent(_) => self.needs == Needs::AgentKey,
            Scope::ReadOnly => !self.changes && matches!(self.needs, Needs::AgentKey | Needs::TeamView),
        }
    }
}

/// One method of one path, as declared.
#[derive(Clone, Copy, Debug)]
pub struct DeclaredRoute {
    /// `GET`, …, or `ANY`.
    pub method: &'static str,
    /// With placeholders in braces.
    pub path: &'static str,
    /// What it needs.
    pub rule: Rule,
    /// What follows its path in the API's document. None where that leaves it out, as all that answers to any method:
    /// a document has no form for it.
    pub(crate) documented: Option<&'static str>,
}

impl DeclaredRoute {
    /// Its path in the API's document, if it is there.
    pub fn documented_path(&self) -> Option<String> {
        Some(documented_path(self.path, self.documented?))
    }
}

/// `{*path}` takes several parts of a path; a document has no word for that.
pub(crate) fn documented_path(path: &str, suffix: &str) -> String {
    path.replace("{*", "{") + suffix
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Deny by default: whatever a route declares, the smaller scopes never get more than the larger ones.
        #[test]
        fn a_read_only_key_never_changes_and_an_agent_key_needs_an_agent_route(needs in 0..7_usize, changes: bool) {
            let all = [
                Needs::Nothing, Needs::OwnToken, Needs::AgentKey, Needs::TeamView, Needs::TeamKey, Needs::AdminKey,
                Needs::MetricsKey,
            ];
            let rule = Rule { needs: all[needs], changes, action: None };
            prop_assert!(rule.admits(&Scope::Admin));
            prop_assert!(!(changes && rule.admits(&Scope::ReadOnly)));
            prop_assert_eq!(rule.admits(&Scope::Agent("a".to_owned())), rule.needs == Needs::AgentKey);
            prop_assert!(rule.admits(&Scope::Team) || matches!(rule.needs, Needs::AdminKey | Needs::MetricsKey));
        }
    }
}
