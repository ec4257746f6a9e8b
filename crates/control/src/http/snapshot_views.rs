//! How the API shows snapshots, and how requests name them.

use isopod_api::{ApiError, Caller};
use isopod_store::clock::Timestamp;
use isopod_store::{KeptSnapshot, TemplateKind};
use serde::Serialize;
use utoipa::ToSchema;

use crate::templates::Reference;

/// A snapshot. Clients of E2B read the first two fields.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Snapshot)]
pub(super) struct SnapshotView {
    /// `name:tag`, or `id:tag` without a name. A create accepts it as its template.
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    /// The sandbox that it was taken of, which may be gone.
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    /// Whether it has the processes and their memory, and not only the files.
    memory: bool,
    /// What it takes on the server's disk, with what its files share with others.
    bytes: i64,
    /// How much of that is memory.
    memory_bytes: i64,
    created_at: Timestamp,
}

pub(super) fn shown(snapshot: KeptSnapshot) -> SnapshotView {
    let KeptSnapshot { template, build, tag, .. } = snapshot;
    debug_assert_eq!(template.kind, TemplateKind::Snapshot);
    // Without a namespace: old SDKs do not escape the slash when they delete a snapshot. Without a tag, the id of the
    // build names it.
    let name = template.names.first().unwrap_or(&template.id);
    let tag = tag.as_ref().unwrap_or(&build.id);
    SnapshotView {
        snapshot_id: format!("{name}:{tag}"),
        sandbox_id: build.snapshot.as_ref().map(|source| source.sandbox.to_string()).unwrap_or_default(),
        memory: build.snapshot.as_ref().is_some_and(|source| source.has_memory),
        bytes: build.size.unwrap_or_default(),
        memory_bytes: build.memory_size.unwrap_or_default(),
        created_at: build.created_at,
        build_id: build.id,
        names: template.names,
        template_id: template.id,
    }
}

/// Parses `[namespace/]name[:tag]`, where the namespace is the caller's team.
pub(super) fn own_reference(caller: &Caller, text: &str) -> Result<Reference, ApiError> {
    let reference = Reference::parse(text)?;
    let team_name = caller.team_name.to_lowercase().replace(' ', "-");
    match &reference.namespace {
        Some(space) if *space != caller.team.0 && *space != team_name => {
            Err(ApiError::bad_request(format!("'{space}' is not your team's namespace")))
        }
        _ => Ok(reference),
    }
}
