//! The route table. Every route declares its access rule, whether it changes something, its audit action, and its
//! purpose. The access check runs before the handler. Routes cannot be registered in another way. Therefore a route
//! without a declaration does not compile, and neither does one whose handler does not describe its input and output.
//!
//! `docs/security/routes.md` contains the whole table. `tests/routes.rs` compares it with what the server answers.
//! [`crate::document`] builds the API's document from the same table.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{self, MethodRouter};
use http::Method;
use isopod_store::Scope;

use crate::audited::AuditedCaller;
use crate::auth::Authenticator;
use crate::describe::{DescribedHandler, Description, new_description};
use crate::error::ApiError;
use crate::location::{Located, Location};
use crate::params::Param;
use crate::rule::{DeclaredRoute, Needs, Rule};

/// A handler for one method, with its rule.
#[derive(Debug)]
pub struct Endpoint<S> {
    method: &'static str,
    rule: Rule,
    handler: MethodRouter<S>,
    operation: Option<Operation>,
    located: Option<Located>,
}

/// The part of an endpoint's documentation that does not follow from its rule and its path.
#[derive(Debug)]
struct Operation {
    summary: &'static str,
    suffix: &'static str,
    needs_body: bool,
    /// Describes the handler by its signature.
    describe: fn(&mut Description),
    refusals: Vec<u16>,
    never: Vec<u16>,
    path_parameters: Vec<Param>,
}

/// A route with its complete description.
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
    /// Removes the limit for the body. The handler limits it itself.
    pub fn without_body_limit(self) -> Self {
        Self { handler: self.handler.layer(DefaultBodyLimit::disable()), ..self }
    }

    /// Adds statuses that callers may get, in addition to those of all routes of its kind.
    #[must_use]
    pub fn may_refuse(mut self, statuses: &[u16]) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.refusals.extend(statuses);
        }
        self
    }

    /// Marks the body as required, although none of its fields is.
    #[must_use]
    pub fn needs_body(mut self) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.needs_body = true;
        }
        self
    }

    /// Sets a required suffix of the last path parameter, which the route itself cannot express.
    #[must_use]
    pub fn ending_in(mut self, suffix: &'static str) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.suffix = suffix;
        }
        self
    }

    /// Declares that it makes a sandbox, which any server of a cluster may do.
    #[must_use]
    pub fn makes_sandbox(self) -> Self {
        Self { located: Some(Located { by: Location::NewSandbox, parameter: "" }), ..self }
    }

    /// Removes a status that other routes of its kind return.
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
        /// `summary` is for readers of the API's document. The rest is derived from the handler.
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
            let handler = routing::$name(handler);
            Endpoint { method: $method, rule, handler, operation: Some(operation), located: None }
        }
    };
}

endpoint!(get, "GET");
endpoint!(head, "HEAD");
endpoint!(post, "POST");
endpoint!(put, "PUT");
endpoint!(patch, "PATCH");
endpoint!(delete, "DELETE");

/// Matches every method. Not in the API's document, because OpenAPI cannot express it.
pub fn any<H, T, S>(rule: Rule, handler: H) -> Endpoint<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Endpoint { method: ANY, rule, handler: routing::any(handler), operation: None, located: None }
}

/// A page for browsers. Not in the API's document, because it is not for programs.
pub fn page<H, T, S>(rule: Rule, handler: H) -> Endpoint<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Endpoint { method: "GET", rule, handler: routing::get(handler), operation: None, located: None }
}

/// What a page sends. Not in the API's document, because it is not for programs.
pub fn submit<H, T, S>(rule: Rule, handler: H) -> Endpoint<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Endpoint { method: "POST", rule, handler: routing::post(handler), operation: None, located: None }
}

/// A table of routes for handlers with this state.
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
            located: endpoint.located,
        })
    }

    /// Adds statuses that callers of all these routes may get.
    #[must_use]
    pub fn may_refuse(self, statuses: &[u16]) -> Self {
        Self(self.0.into_iter().map(|(path, endpoint)| (path, endpoint.may_refuse(statuses))).collect())
    }

    /// Declares that in these routes, if they have this parameter, it tells the server that has what they are about.
    #[must_use]
    pub fn located(mut self, by: Location, parameter: &'static str) -> Self {
        let placeholder = format!("{{{parameter}}}");
        let in_path = |path: &str| path.split('/').any(|segment| segment == placeholder);
        for (_, endpoint) in self.0.iter_mut().filter(|(path, endpoint)| endpoint.located.is_none() && in_path(path)) {
            endpoint.located = Some(Located { by, parameter });
        }
        self
    }

    /// Describes a path parameter of these routes.
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
            let mut description = new_description(operation.summary);
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

    /// Builds the router. Each handler is behind the check of its own rule.
    pub fn into_router(self, authenticator: &Arc<Authenticator>, state: S) -> Router {
        let routes =
            self.0.into_iter().fold(Router::new(), |router, (path, Endpoint { method, rule, handler, .. })| {
                let check = from_fn_with_state((Arc::clone(authenticator), rule), check);
                // With `any`, the handler is the fallback. With the others, the fallback returns 405.
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
    let team = caller.team.clone();
    // What is removed takes no memory.
    if request.method() != Method::DELETE
        && let Err(refusal) = authenticator.replies.admit(&team)
    {
        return refusal.into_response();
    }
    request.extensions_mut().insert(caller);
    authenticator.replies.count(&team, next.run(request).await)
}

/// Whether the rule requires no key.
fn is_open(rule: Rule, authenticator: &Authenticator) -> bool {
    match rule.needs {
        Needs::Nothing | Needs::OwnToken | Needs::Session => true,
        Needs::MetricsKey => authenticator.open_metrics,
        Needs::AgentKey | Needs::TeamView | Needs::TeamKey | Needs::AdminKey => false,
    }
}

fn forbidden(rule: Rule, scope: &Scope) -> ApiError {
    let wanted = match rule.needs {
        Needs::AdminKey | Needs::MetricsKey => "an admin key",
        Needs::AgentKey | Needs::TeamView if rule.changes => "a key with write access",
        _ => "a key for the whole team",
    };
    let message = format!("this route requires {wanted}; yours has the scope {}", scope.text());
    ApiError::forbidden(message).with_code("scope_forbids")
}
