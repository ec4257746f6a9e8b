//! The declaration of a route: its access rule, whether it changes something, and its audit action.

use isopod_store::Scope;

use crate::location::Located;

/// The credentials that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// A secret for this one resource, such as an upload link or a volume's token. The handler checks it.
    OwnToken,
    /// Any key. For an agent's key, the handler shows only what belongs to that agent.
    AgentKey,
    /// A key that can read everything of its team: team, read-only, admin.
    TeamView,
    /// A key with all permissions of its team: team, admin.
    TeamKey,
    /// An admin key.
    AdminKey,
    /// An admin key, or nothing if the operator opened the metrics.
    MetricsKey,
    /// The cookie of a signed-in browser. The dashboard checks it, and then calls the API with the key that the
    /// browser signed in with, so that the rules of those routes decide.
    Session,
}

/// The declaration of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The required credentials.
    pub needs: Needs,
    /// Whether it changes something. Read-only keys have no access to such routes.
    pub changes: bool,
    /// Its action in the audit log. `None` if it is not audited.
    pub action: Option<&'static str>,
}

/// A route that only reads and is not audited.
pub const fn reads(needs: Needs) -> Rule {
    Rule { needs, changes: false, action: None }
}

/// A route that changes something or runs code. `action` is its stable name in the audit log.
pub const fn changes(needs: Needs, action: &'static str) -> Rule {
    Rule { needs, changes: true, action: Some(action) }
}

/// A route that would change something, but is not supported.
pub const fn refuses(needs: Needs) -> Rule {
    Rule { needs, changes: true, action: None }
}

impl Rule {
    /// Audits a route that only reads.
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
    pub rule: Rule,
    /// The suffix of its path in the API's document. `None` if the document does not contain it, which is the case for
    /// routes that match any method.
    pub(crate) documented: Option<&'static str>,
    /// Which of its parameters tells the server that has what it is about.
    pub(crate) located: Option<Located>,
}

impl DeclaredRoute {
    /// Its path in the API's document, if it is there.
    pub fn documented_path(&self) -> Option<String> {
        Some(documented_path(self.path, self.documented?))
    }
}

/// OpenAPI has no notation for `{*path}`, which matches several components.
pub(crate) fn documented_path(path: &str, suffix: &str) -> String {
    path.replace("{*", "{") + suffix
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Deny by default: whatever a route declares, smaller scopes never get more than larger ones.
        #[test]
        fn a_read_only_key_never_changes_and_an_agent_key_needs_an_agent_route(needs in 0..8_usize, changes: bool) {
            let all = [
                Needs::Nothing, Needs::OwnToken, Needs::AgentKey, Needs::TeamView, Needs::TeamKey, Needs::AdminKey,
                Needs::MetricsKey, Needs::Session,
            ];
            let rule = Rule { needs: all[needs], changes, action: None };
            prop_assert!(rule.admits(&Scope::Admin));
            prop_assert!(!(changes && rule.admits(&Scope::ReadOnly)));
            prop_assert_eq!(rule.admits(&Scope::Agent("a".to_owned())), rule.needs == Needs::AgentKey);
            prop_assert!(rule.admits(&Scope::Team) || matches!(rule.needs, Needs::AdminKey | Needs::MetricsKey));
        }
    }
}
