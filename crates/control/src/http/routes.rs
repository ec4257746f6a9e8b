//! The route table. Every route declares what its caller must show, whether the route changes something, what the audit
//! calls it, and what it is for; the check stands in front of the handler. There is no other way to register a route, so
//! one that declares nothing does not compile, and neither does one whose handler says not what it takes and gives.
//!
//! `docs/security/routes.md` is the whole table, compared by `tests/routes.rs` with what the server answers. The API's
//! document is made of the same table by [`super::document`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{self, MethodRouter};
use isopod_store::Scope;

use super::audited::AuditedCaller;
use super::auth::Authenticator;
use super::describe::{DescribedHandler, Description, begun};
use super::error::ApiError;
use super::params::Param;

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

    fn admits(self, scope: &Scope) -> bool {
        match scope {
            Scope::Admin => true,
            Scope::Team => !matches!(self.needs, Needs::AdminKey | Needs::MetricsKey),
            Scope::Agent(_) => self.needs == Needs::AgentKey,
            Scope::ReadOnly => !self.changes && matches!(self.needs, Needs::AgentKey | Needs::TeamView),
        }
    }

    fn is_open(self, authenticator: &Authenticator) -> bool {
        match self.needs {
            Needs::Nothing | Needs::OwnToken => true,
            Needs::MetricsKey => authenticator.open_metrics,
            Needs::AgentKey | Needs::TeamView | Needs::TeamKey | Needs::AdminKey => false,
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
    documented: Option<&'static str>,
}

impl DeclaredRoute {
    /// Its path in the API's document, if it is there.
    pub fn documented_path(&self) -> Option<String> {
        Some(documented_path(self.path, self.documented?))
    }
}

/// A handler for one method, with its rule.
#[derive(Debug)]
pub struct Endpoint<S> {
    method: &'static str,
    rule: Rule,
    handler: MethodRouter<S>,
    operation: Option<Operation>,
}

/// What the API's document says of an endpoint, besides what follows from its rule and its path.
#[derive(Debug)]
struct Operation {
    summary: &'static str,
    suffix: &'static str,
    needs_body: bool,
    /// Reads it off the handler.
    describe: fn(&mut Description),
    refusals: Vec<u16>,
    never: Vec<u16>,
    path_parameters: Vec<Param>,
}

/// All of that together.
pub(super) struct DescribedRoute {
    pub(super) path: &'static str,
    pub(super) suffix: &'static str,
    pub(super) method: &'static str,
    pub(super) rule: Rule,
    pub(super) description: Description,
    pub(super) path_parameters: Vec<Param>,
    pub(super) never: Vec<u16>,
}

impl<S: Clone + Send + Sync + 'static> Endpoint<S> {
    /// For bodies of any size, which the handler limits itself.
    pub fn without_body_limit(self) -> Self {
        Self { handler: self.handler.layer(DefaultBodyLimit::disable()), ..self }
    }

    /// Statuses that its callers may get besides those that all routes of its kind give.
    #[must_use]
    pub fn may_refuse(mut self, statuses: &[u16]) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.refusals.extend(statuses);
        }
        self
    }

    /// A body without a field is refused, although none of them is needed by itself.
    #[must_use]
    pub fn needs_body(mut self) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.needs_body = true;
        }
        self
    }

    /// What the last name in the path must end with, which the route itself cannot say.
    #[must_use]
    pub fn ending_in(mut self, suffix: &'static str) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.suffix = suffix;
        }
        self
    }

    /// A status that other routes of its kind give, and this one never.
    #[must_use]
    pub fn never_refuses(mut self, status: u16) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.never.push(status);
        }
        self
    }
}

const ANY: &str = "ANY";

macro_rules! endpoint {
    ($name:ident, $method:expr) => {
        /// `summary` is what people read of it in the API's document; the rest is read off the handler.
        pub fn $name<H, T, S>(rule: Rule, summary: &'static str, handler: H) -> Endpoint<S>
        where
            H: Handler<T, S> + DescribedHandler<T>,
            T: 'static,
            S: Clone + Send + Sync + 'static,
        {
            let operation = Operation {
                summary,
                suffix: "",
                needs_body: false,
                describe: H::describe,
                refusals: Vec::new(),
                never: Vec::new(),
                path_parameters: Vec::new(),
            };
            Endpoint { method: $method, rule, handler: routing::$name(handler), operation: Some(operation) }
        }
    };
}

endpoint!(get, "GET");
endpoint!(head, "HEAD");
endpoint!(post, "POST");
endpoint!(put, "PUT");
endpoint!(patch, "PATCH");
endpoint!(delete, "DELETE");

/// Answers to every method. Not in the API's document, which has no form for it.
pub fn any<H, T, S>(rule: Rule, handler: H) -> Endpoint<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Endpoint { method: ANY, rule, handler: routing::any(handler), operation: None }
}

/// `{*path}` takes several parts of a path; a document has no word for that.
pub(super) fn documented_path(path: &str, suffix: &str) -> String {
    path.replace("{*", "{") + suffix
}

/// Routes in the making, for handlers with this state.
#[derive(Debug)]
pub struct Routes<S>(Vec<(&'static str, Endpoint<S>)>);

impl<S> Default for Routes<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn route<const N: usize>(mut self, path: &'static str, endpoints: [Endpoint<S>; N]) -> Self {
        self.0.extend(endpoints.into_iter().map(|endpoint| (path, endpoint)));
        self
    }

    pub fn merge(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn declared(&self) -> impl Iterator<Item = DeclaredRoute> + '_ {
        self.0.iter().map(|(path, endpoint)| DeclaredRoute {
            method: endpoint.method,
            path,
            rule: endpoint.rule,
            documented: endpoint.operation.as_ref().map(|operation| operation.suffix),
        })
    }

    /// Statuses that callers of all these routes may get.
    #[must_use]
    pub fn may_refuse(self, statuses: &[u16]) -> Self {
        Self(self.0.into_iter().map(|(path, endpoint)| (path, endpoint.may_refuse(statuses))).collect())
    }

    /// What a name in the paths of these routes stands for.
    #[must_use]
    pub fn path_parameter(mut self, parameter: Param) -> Self {
        for operation in self.0.iter_mut().filter_map(|(_, endpoint)| endpoint.operation.as_mut()) {
            operation.path_parameters.push(parameter);
        }
        self
    }

    pub(super) fn described(&self) -> impl Iterator<Item = DescribedRoute> {
        self.0.iter().filter_map(|(path, endpoint)| {
            let operation = endpoint.operation.as_ref()?;
            let mut description = begun(operation.summary);
            (operation.describe)(&mut description);
            description.may_refuse(&operation.refusals);
            if operation.needs_body {
                description.needs_body();
            }
            Some(DescribedRoute {
                path,
                suffix: operation.suffix,
                method: endpoint.method,
                rule: endpoint.rule,
                description,
                path_parameters: operation.path_parameters.clone(),
                never: operation.never.clone(),
            })
        })
    }

    /// The handlers, each behind the check of its own rule.
    pub fn into_router(self, authenticator: &Arc<Authenticator>, state: S) -> Router {
        let routes =
            self.0.into_iter().fold(Router::new(), |router, (path, Endpoint { method, rule, handler, .. })| {
                let check = from_fn_with_state((Arc::clone(authenticator), rule), check);
                // Of `any`, the handler is the fallback; of the others, the fallback says that there is no such method.
                let checked = if method == ANY { handler.layer(check) } else { handler.route_layer(check) };
                router.route(path, checked)
            });
        routes.with_state(state)
    }
}

async fn check(
    State((authenticator, rule)): State<(Arc<Authenticator>, Rule)>,
    mut request: Request,
    next: Next,
) -> Response {
    if rule.is_open(&authenticator) {
        return next.run(request).await;
    }
    let caller = match authenticator.identify(request.headers(), request.extensions()).await {
        Ok(caller) => caller,
        Err(refusal) => return refusal.into_response(),
    };
    if let Some(audited) = request.extensions().get::<AuditedCaller>()
        && let Err(down) = audited.is(&caller)
    {
        return down.into_response();
    }
    if !rule.admits(&caller.scope) {
        return forbidden(rule, &caller.scope).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn forbidden(rule: Rule, scope: &Scope) -> ApiError {
    let wanted = match rule.needs {
        Needs::AdminKey | Needs::MetricsKey => "an admin key",
        Needs::AgentKey | Needs::TeamView if rule.changes => "a key that may change something",
        _ => "a key for the whole team",
    };
    let message = format!("this needs {wanted}; yours has the scope {}", scope.text());
    ApiError::forbidden(message).with_code("scope_forbids")
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
