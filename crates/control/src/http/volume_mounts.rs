//! The workspace mounts of a new sandbox: the files of its execution, and volumes by name.

use isopod_api::{ApiError, Caller, claimed_execution};
use isopod_store::VolumeMount;
use isopod_wire::node::WorkspaceMount;
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::file_bodies::file_store;
use crate::lifecycle::{NewSandbox, Sandbox};
use isopod_files::workspace::{EXECUTION_KEY, VOLUMES};

/// A mount as the SDKs send it.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewVolumeMount)]
pub(super) struct VolumeMountBody {
    name: String,
    path: String,
}

const MAX_MOUNTS: usize = 16;
/// Directories of the sandbox's own system.
const TAKEN: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Adds the requested volumes, and checks that the mounted files belong to the caller.
pub(super) async fn attach(
    app: &App,
    caller: &Caller,
    asked: Vec<VolumeMountBody>,
    wanted: &mut NewSandbox,
) -> Result<(), ApiError> {
    if !wanted.mounts.is_empty()
        && let Some(execution) = wanted.metadata.get(EXECUTION_KEY)
    {
        claimed_execution(&app.fleet.store, caller, execution).await?;
    }
    if asked.len() > MAX_MOUNTS {
        return Err(ApiError::bad_request(format!("a sandbox can have at most {MAX_MOUNTS} volumes")));
    }
    for VolumeMountBody { name, path } in asked {
        file_store(app.files.as_ref())?;
        let path = checked_path("volumeMounts: path", &path)?;
        if wanted.mounts.iter().any(|mount| mount.path == path) {
            return Err(ApiError::bad_request(format!("volumeMounts: {path} is used twice")));
        }
        let found = app.fleet.store.find_volume_named(&caller.team, &name).await?;
        let volume = found.ok_or_else(|| ApiError::bad_request(format!("volumeMounts: volume {name:?} not found")))?;
        let subtree = format!("{VOLUMES}/{}", volume.id);
        wanted.mounts.push(WorkspaceMount { path: path.clone(), subtree, read_only: false, ready_file: None });
        wanted.volume_mounts.push(VolumeMount { name, path });
    }
    Ok(())
}

/// Checks the execution again, because it may have been removed and claimed by another team while its sandbox was being
/// created.
pub(super) async fn confirm(app: &App, caller: &Caller, sandbox: &Sandbox) -> Result<(), ApiError> {
    if !app.workspace.as_ref().is_some_and(|workspace| workspace.reads_metadata()) {
        return Ok(());
    }
    let view = sandbox.view();
    let Some(execution) = view.row.metadata.get(EXECUTION_KEY) else { return Ok(()) };
    match claimed_execution(&app.fleet.store, caller, execution).await {
        Ok(_) => Ok(()),
        Err(refusal) => {
            sandbox.kill().await?;
            Err(refusal)
        }
    }
}

/// A path inside a sandbox where something may be mounted. `what` names it in errors.
pub(super) fn checked_path(what: &str, path: &str) -> Result<String, ApiError> {
    let wrong = |why: &str| ApiError::bad_request(format!("{what} {path:?} {why}"));
    let path_without_end = path.trim_end_matches('/');
    if !path.starts_with('/') || path_without_end.is_empty() || path.len() > 1024 || path.contains('\0') {
        return Err(wrong("must be an absolute path other than /"));
    }
    if path_without_end.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
        return Err(wrong("must not contain empty components, `.` or `..`"));
    }
    let is_taken = |taken: &&str| path_without_end == *taken || path_without_end.starts_with(&format!("{taken}/"));
    if TAKEN.iter().any(is_taken) {
        return Err(wrong("is reserved for the sandbox's system"));
    }
    Ok(path_without_end.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_not_mounted_over_the_sandbox_itself() {
        for bad in ["", "/", "//", "mnt", "/a/../b", "/a//b", "/proc", "/proc/1", "/dev/shm", "/a\0"] {
            assert!(checked_path("path", bad).is_err(), "{bad:?}");
        }
        assert_eq!(checked_path("path", "/mnt/data/").unwrap(), "/mnt/data");
        assert!(checked_path("path", "/devices").is_ok());
    }
}
