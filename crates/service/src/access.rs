//! Decides who may do what to which sandbox, by a pure function. Every operation calls it first.

use isopod_api::Caller;
use isopod_store::service::ServiceSandbox;
use isopod_store::{Scope, TeamId};

use super::{Service, ServiceError};

/// The caller.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) team: TeamId,
    pub(crate) scope: Scope,
    /// For the records: `key:…` or `user:…`.
    pub(crate) actor: String,
}

impl From<&Caller> for Access {
    fn from(caller: &Caller) -> Self {
        Self { team: caller.team.clone(), scope: caller.scope.clone(), actor: caller.actor.clone() }
    }
}

/// Whether a call reads or changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

impl Access {
    /// Checks whether the caller may do this to something of that team and agent. Things of another team do not exist
    /// for the caller.
    pub(crate) fn check(&self, operation: Operation, team: &TeamId, agent: Option<&str>) -> Result<(), Denied> {
        if self.scope != Scope::Admin && self.team != *team {
            return Err(Denied::NotFound);
        }
        match &self.scope {
            Scope::Agent(own) if agent != Some(own.as_str()) => Err(Denied::NotOwner),
            Scope::ReadOnly if operation == Operation::Write => Err(Denied::ReadOnly),
            _ => Ok(()),
        }
    }

    /// Checks whether the caller may change anything at all, before there is something to own.
    pub(crate) fn check_change(&self) -> Result<(), ServiceError> {
        if self.scope == Scope::ReadOnly { Err(ServiceError::ScopeForbids) } else { Ok(()) }
    }

    /// The team to list. `None` means all teams.
    pub(crate) fn team_filter(&self) -> Option<TeamId> {
        if self.scope == Scope::Admin { None } else { Some(self.team.clone()) }
    }

    /// The agent to list. An agent's key sees only its own agent, others what they request.
    pub(crate) fn agent_filter(&self, wanted: Option<&str>) -> Result<Option<String>, ServiceError> {
        match (&self.scope, wanted) {
            (Scope::Agent(own), None) => Ok(Some(own.clone())),
            (Scope::Agent(own), Some(wanted)) if own != wanted => Err(ServiceError::NotOwner),
            (_, wanted) => Ok(wanted.map(str::to_owned)),
        }
    }
}

/// Why access is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    NotFound,
    NotOwner,
    ReadOnly,
}

impl Denied {
    pub(crate) fn error(self, what: &'static str, id: &str) -> ServiceError {
        match self {
            Self::NotFound => ServiceError::not_found(what, id),
            Self::NotOwner => ServiceError::NotOwner,
            Self::ReadOnly => ServiceError::ScopeForbids,
        }
    }
}

impl Service {
    /// The sandbox, if the caller may do this to it.
    pub(crate) async fn find(
        &self,
        access: &Access,
        operation: Operation,
        id: &str,
    ) -> Result<ServiceSandbox, ServiceError> {
        let row = match self.store.find_service_sandbox(id).await? {
            Some(row) => row,
            None => self.adopt(access, id).await?.ok_or_else(|| ServiceError::not_found("sandbox", id))?,
        };
        access.check(operation, &row.team, row.agent.as_deref()).map_err(|denied| denied.error("sandbox", id))?;
        if row.server != self.server {
            return Err(self.store.on_other_server(&row.server).await.into());
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn access(scope: Scope) -> Access {
        Access { team: TeamId("t".to_owned()), scope, actor: String::new() }
    }

    proptest! {
        /// Only an admin has access to other teams, and an agent's key only to its own agent.
        #[test]
        fn ownership_holds_for_every_scope(scope in 0..4, same_team: bool, agent in proptest::option::of("[ab]"), change: bool) {
            let scope = [Scope::Team, Scope::Agent("a".to_owned()), Scope::ReadOnly, Scope::Admin][scope as usize].clone();
            let team = TeamId(if same_team { "t" } else { "other" }.to_owned());
            let operation = if change { Operation::Write } else { Operation::Read };
            let allowed = access(scope.clone()).check(operation, &team, agent.as_deref()).is_ok();
            let expected = match scope {
                Scope::Admin => true,
                Scope::Team => same_team,
                Scope::ReadOnly => same_team && !change,
                Scope::Agent(own) => same_team && agent == Some(own),
            };
            prop_assert_eq!(allowed, expected);
        }
    }
}
