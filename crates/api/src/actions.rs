//! The audit action of a request, from the declaration of its route, and the subject, from its path.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;

use crate::audit::Subject;
use crate::rule::DeclaredRoute;

/// The actions of all audited routes.
#[derive(Clone, Debug)]
pub struct Actions(Arc<HashMap<(&'static str, &'static str), &'static str>>);

impl Actions {
    /// Collects the actions of these routes.
    pub fn of(routes: impl Iterator<Item = DeclaredRoute>) -> Self {
        let audited = routes.filter_map(|route| Some(((route.method, route.path), route.rule.action?)));
        Self(Arc::new(audited.collect()))
    }

    /// Returns `None` if the route is not audited.
    pub fn find(&self, method: &Method, pattern: &str) -> Option<&'static str> {
        // The handler of a GET also answers HEAD.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&(method.as_str(), pattern)).copied()
    }
}

/// Returns what the path names. The owner of a session, or a team, takes the place of a task, prefixed with its kind.
pub(crate) fn subject_of(pattern: &str, path: &str) -> Subject {
    let named = |placeholder: &str| {
        let place = pattern.split('/').position(|part| part == placeholder)?;
        path.split('/').nth(place).map(|id| id.chars().take(128).collect::<String>())
    };
    if let Some(run) = named("{run_id}") {
        return Subject { task: Some(format!("run/{run}")), ..Subject::default() };
    }
    let id = named("{id}");
    match pattern {
        _ if pattern.contains("/sandboxes/") || pattern.contains("/git/") => {
            Subject { sandbox: id, ..Subject::default() }
        }
        _ if pattern.contains("/tasks/") => Subject { task: id, ..Subject::default() },
        _ if pattern.contains("/agents/") => Subject { agent: id, ..Subject::default() },
        _ if pattern.contains("/executions/") => {
            Subject { task: id.map(|id| format!("execution/{id}")), ..Subject::default() }
        }
        _ if pattern.contains("/api/v1/teams/") => {
            Subject { task: id.map(|id| format!("team/{id}")), ..Subject::default() }
        }
        _ => Subject::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_what_a_line_is_about() {
        let of = |pattern: &str, path: &str| subject_of(pattern, path);
        assert_eq!(of("/v2/sandboxes/{id}/connect", "/v2/sandboxes/i1/connect").sandbox.as_deref(), Some("i1"));
        assert_eq!(of("/runtime/{run_id}/execute", "/runtime/r1/execute").task.as_deref(), Some("run/r1"));
        assert_eq!(of("/cleanup/{run_id}", "/cleanup/r1").task.as_deref(), Some("run/r1"));
        let stored = of("/api/v1/executions/{id}/files/{*key}", "/api/v1/executions/e1/files/a/b");
        assert_eq!(stored.task.as_deref(), Some("execution/e1"));
        assert_eq!(of("/api/v1/git/{id}/history", "/api/v1/git/i1/history").sandbox.as_deref(), Some("i1"));
        assert_eq!(of("/api/v1/tasks/{id}/finish", "/api/v1/tasks/t1/finish").task.as_deref(), Some("t1"));
        assert_eq!(of("/api/v1/agents/{id}", "/api/v1/agents/a1").agent.as_deref(), Some("a1"));
        assert_eq!(of("/api/v1/teams/{id}/quota", "/api/v1/teams/x/quota").task.as_deref(), Some("team/x"));
        assert_eq!(of("/api-keys/{id}", "/api-keys/k1").sandbox, None);
    }
}
