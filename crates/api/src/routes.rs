//! The route table. Every route declares what its caller must show, whether the route changes something, what the audit
//! calls it, and what it is for; the check stands in front of the handler. There is no other way to register a route, so
//! one that declares nothing does not compile, and neither does one whose handler says not what it takes and gives.
//!
//! `docs/security/routes.md` is the whole table, compared by `tests/routes.rs` with what the server answers. The API's
//! document is made of the same table by [`crate::document`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{self, MethodRouter};
use isopod_store::Scope;

use crate::audited::AuditedCaller;
use crate::auth::Authenticator;
use crate::describe::{DescribedHandler, Description, begun};
use crate::error::ApiError;
use crate::params::Param;
use crate::rule::{DeclaredRoute, Needs, Rule};

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
pub(crate) struct DescribedRoute {
    pub(crate) path: &'static str,
    pub(crate) suffix: &'static str,
    pub(crate) method: &'static str,
    pub(crate) rule: Rule,
    pub(crate) description: Description,
    pub(crate) path_parameters: Vec<Param>,
    pub(crate) never: Vec<u16>,
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

    pub(crate) fn described(&self) -> impl Iterator<Item = DescribedRoute> {
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
    if is_open(rule, &authenticator) {
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

/// Whether the rule asks for no key.
fn is_open(rule: Rule, authenticator: &Authenticator) -> bool {
    match rule.needs {
        Needs::Nothing | Needs::OwnToken => true,
        Needs::MetricsKey => authenticator.open_metrics,
        Needs::AgentKey | Needs::TeamView | Needs::TeamKey | Needs::AdminKey => false,
    }
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
