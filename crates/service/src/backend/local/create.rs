//! Creates a sandbox on this node, once per key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::{Attempt, Fleet, NewSandbox, SESSION_KEY, Sandbox};
use isopod_control::templates::{Catalogue, UsableTemplate};
use isopod_store::NetworkSettings;
use sha2::{Digest as _, Sha256};

use super::super::{BackendError, CreateSpec};
use super::error::{of_find, of_once};

/// The prefix of the service's keys. It contains a character that keys of the E2B API may not contain.
const KEY_PREFIX: &str = "service/";

pub(super) async fn create(
    fleet: &Arc<Fleet>,
    catalogue: &Catalogue,
    spec: &CreateSpec,
) -> Result<Arc<Sandbox>, BackendError> {
    check(fleet, spec)?;
    let mut template = catalogue.usable(&spec.team, &spec.template).await.map_err(of_find)?;
    if let Some(limits) = spec.limits {
        if template.has_fixed_limits() && limits != template.limits {
            return Err(BackendError::invalid("a sandbox from a snapshot with memory has the limits of the snapshot"));
        }
        template.limits = limits;
    }
    let attempt = Attempt {
        team: spec.team.clone(),
        key: format!("{KEY_PREFIX}{}", spec.key),
        request: Sha256::digest(request_text(spec)).into(),
    };
    let wanted = wanted(spec, template, &attempt.key);
    let maker = Arc::clone(fleet);
    let making = async move { maker.create(wanted).await };
    fleet.once(attempt, making).await.map_err(of_once)
}

/// Checks a timeout against the maximum lifetime of a sandbox.
pub(super) fn check_timeout(fleet: &Fleet, timeout: Duration) -> Result<(), BackendError> {
    let max = fleet.max_lifetime();
    match timeout > max {
        true => Err(BackendError::invalid(format!("a timeout cannot be longer than {} seconds", max.as_secs()))),
        false => Ok(()),
    }
}

fn check(fleet: &Fleet, spec: &CreateSpec) -> Result<(), BackendError> {
    check_timeout(fleet, spec.timeout)?;
    if spec.template.is_empty() || spec.template.len() > 256 {
        return Err(BackendError::invalid("the name of a template must have 1 to 256 characters"));
    }
    if let Some(limits) = &spec.limits {
        limits.check().map_err(|error| BackendError::invalid(format!("limits: {error}")))?;
    }
    if spec.metadata.contains_key(SESSION_KEY) {
        return Err(BackendError::invalid(format!("sandboxes of the service cannot have the metadata {SESSION_KEY}")));
    }
    check_env(&spec.env)
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), BackendError> {
    let bad = env.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    match bad {
        Some((name, _)) => Err(BackendError::invalid(format!("the variable {name:?} cannot be set"))),
        None => Ok(()),
    }
}

/// The same request gives the same text.
fn request_text(spec: &CreateSpec) -> String {
    let CreateSpec {
        key: _,
        sent_before: _,
        team: _,
        template,
        timeout,
        auto_pause,
        limits,
        allow_internet,
        metadata,
        env,
    } = spec;
    format!("{:?}", (template, timeout, auto_pause, limits, allow_internet, metadata, env))
}

fn wanted(spec: &CreateSpec, template: UsableTemplate, key: &str) -> NewSandbox {
    NewSandbox {
        team: spec.team.clone(),
        template,
        timeout: spec.timeout,
        auto_pause: spec.auto_pause,
        auto_pause_memory: true,
        auto_resume: false,
        secure: true,
        allow_internet: spec.allow_internet,
        network: NetworkSettings::default(),
        metadata: spec.labelled_metadata(),
        env: spec.env.clone(),
        session_key: None,
        idempotency_key: Some(key.to_owned()),
        mounts: Vec::new(),
        volume_mounts: Vec::new(),
    }
}
