//! What a route does, in a word that does not change, and what it does it to. The words are the service's own where both
//! can do the same.

use http::Method;

use crate::http::service::Subject;

/// Of a request that changes something.
pub(super) fn action_of(method: &Method, pattern: &str) -> &'static str {
    let method = method.as_str();
    match pattern.split('/').nth(1).unwrap_or_default() {
        "sandboxes" | "v2" | "v3" if pattern.contains("/sandboxes") => of_sandboxes(method, pattern),
        "templates" | "v2" | "v3" | "isopod" => of_templates(method, pattern),
        "runtime" | "cleanup" => of_runs(method, pattern),
        "api" | "volumes" | "volumecontent" => of_storage(method, pattern),
        _ => of_the_team(method, pattern),
    }
}

fn of_sandboxes(method: &str, pattern: &str) -> &'static str {
    match (method, pattern.trim_start_matches("/v2")) {
        ("POST", "/sandboxes") => "sandbox.create",
        ("DELETE", "/sandboxes/{id}") => "sandbox.destroy",
        (_, "/sandboxes/{id}/connect") => "sandbox.connect",
        (_, "/sandboxes/{id}/resume") => "sandbox.resume",
        (_, "/sandboxes/{id}/timeout") => "sandbox.set_timeout",
        (_, "/sandboxes/{id}/refreshes") => "sandbox.refresh",
        (_, "/sandboxes/{id}/pause") => "sandbox.pause",
        (_, "/sandboxes/{id}/network") => "sandbox.set_network",
        _ => "other",
    }
}

fn of_templates(method: &str, pattern: &str) -> &'static str {
    match (method, pattern) {
        ("POST", "/templates" | "/v2/templates" | "/v3/templates" | "/templates/{id}") => "template.request_build",
        ("PATCH", "/templates/{id}" | "/v2/templates/{id}") => "template.change",
        ("DELETE", "/templates/{id}") => "template.remove",
        ("POST", "/templates/tags") => "template.tag",
        ("DELETE", "/templates/tags") => "template.untag",
        ("POST", "/templates/{id}/builds/{build}" | "/v2/templates/{id}/builds/{build}") => "template.build",
        ("POST", "/isopod/templates/builds") => "template.build",
        ("POST", "/isopod/templates/builds/{build}/cancel") => "template.cancel_build",
        ("PUT", "/isopod/uploads/{token}") => "template.upload",
        _ => "other",
    }
}

fn of_runs(method: &str, pattern: &str) -> &'static str {
    match (method, pattern) {
        ("POST", "/runtime/start") => "run.start",
        (_, "/runtime/{run_id}/stop") => "run.stop",
        (_, "/runtime/{run_id}/resume") => "run.resume",
        (_, "/runtime/{run_id}/approve") => "run.approve",
        (_, "/runtime/{run_id}/execute") => "run.execute",
        (_, "/runtime/{run_id}/tools/{name}") => "run.use_tool",
        ("PUT", path) if path.starts_with("/runtime/{run_id}/files/") => "run.write_file",
        ("DELETE", path) if path.starts_with("/runtime/{run_id}/files/") => "run.remove_file",
        (_, "/runtime/{run_id}/library") => "run.attach_files",
        ("DELETE", "/runtime/{run_id}/cleanup" | "/cleanup/{run_id}") => "run.cleanup",
        ("DELETE", "/runtime/artifacts/{run_id}") => "run.remove_artifacts",
        ("POST", path) if path.starts_with("/runtime/artifacts/{run_id}/files/") => "run.promote_artifact",
        ("POST", "/runtime/library/upload") => "library.upload",
        ("DELETE", path) if path.starts_with("/runtime/library/") => "library.remove",
        _ => "other",
    }
}

fn of_storage(method: &str, pattern: &str) -> &'static str {
    match (method, pattern.trim_start_matches("/api/v1")) {
        ("PUT", "/executions/{id}") => "execution.open",
        ("DELETE", "/executions/{id}") => "execution.remove",
        (_, "/executions/{id}/cleanup") => "execution.cleanup",
        (_, "/executions/{id}/copy") => "execution.copy_file",
        (_, "/executions/{id}/move") => "execution.move_file",
        ("PUT", path) if path.starts_with("/executions/{id}/files/") => "execution.write_file",
        ("DELETE", path) if path.starts_with("/executions/{id}/files/") => "execution.remove_file",
        ("PUT", "/executions/{id}/toolkit") => "toolkit.configure",
        ("POST", "/executions/{id}/toolkit") => "toolkit.start",
        ("DELETE", "/executions/{id}/toolkit") => "toolkit.end",
        (_, "/executions/{id}/toolkit/{tool}") => "toolkit.call",
        ("POST", "/volumes") => "volume.create",
        ("DELETE", "/volumes/{id}") => "volume.remove",
        ("PATCH", "/volumecontent/{id}/path") => "volume.change_entry",
        ("DELETE", "/volumecontent/{id}/path") => "volume.remove_entry",
        ("POST", "/volumecontent/{id}/dir") => "volume.make_directory",
        ("PUT", "/volumecontent/{id}/file") => "volume.write_file",
        _ => "other",
    }
}

fn of_the_team(method: &str, pattern: &str) -> &'static str {
    match (method, pattern) {
        ("POST", "/api-keys") => "api_key.create",
        ("POST", "/api-keys/{id}/rotate") => "api_key.rotate",
        ("PATCH", "/api-keys/{id}") => "api_key.rename",
        ("DELETE", "/api-keys/{id}") => "api_key.revoke",
        ("POST", "/events/webhooks") => "webhook.create",
        ("PATCH", "/events/webhooks/{id}") => "webhook.change",
        ("DELETE", "/events/webhooks/{id}") => "webhook.remove",
        _ => "other",
    }
}

/// What the path names. The owner of a session stands in the place of a task, with its kind before it.
pub(super) fn subject_of(pattern: &str, path: &str) -> Subject {
    let named = |placeholder: &str| {
        let place = pattern.split('/').position(|part| part == placeholder)?;
        path.split('/').nth(place).map(|id| id.chars().take(128).collect::<String>())
    };
    if let Some(run) = named("{run_id}") {
        return Subject { task: Some(format!("run/{run}")), ..Subject::default() };
    }
    let id = named("{id}");
    match pattern {
        _ if pattern.contains("/sandboxes/") => Subject { sandbox: id, ..Subject::default() },
        _ if pattern.contains("/executions/") => {
            Subject { task: id.map(|id| format!("execution/{id}")), ..Subject::default() }
        }
        _ => Subject::default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// S2.14: every route that changes something has a word for the audit.
    #[test]
    fn every_route_that_changes_something_has_a_word() {
        let document: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let mut seen = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let method: Method = method.to_uppercase().parse().unwrap();
                if !method.is_safe() {
                    assert_ne!(action_of(&method, path), "other", "{method} {path}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn a_path_says_what_a_line_is_about() {
        let of = |pattern: &str, path: &str| subject_of(pattern, path);
        assert_eq!(of("/v2/sandboxes/{id}/connect", "/v2/sandboxes/i1/connect").sandbox.as_deref(), Some("i1"));
        assert_eq!(of("/runtime/{run_id}/execute", "/runtime/r1/execute").task.as_deref(), Some("run/r1"));
        assert_eq!(of("/cleanup/{run_id}", "/cleanup/r1").task.as_deref(), Some("run/r1"));
        let stored = of("/api/v1/executions/{id}/files/{*key}", "/api/v1/executions/e1/files/a/b");
        assert_eq!(stored.task.as_deref(), Some("execution/e1"));
        assert_eq!(of("/api-keys/{id}", "/api-keys/k1").sandbox, None);
    }
}
