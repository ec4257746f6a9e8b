//! Which execution's files a new sandbox sees: the execution in its metadata, the one in its variables, or the default
//! of the operator. Whatever names it, it must belong to the caller's team.

use isopod_api::ApiError;
use isopod_store::is_workspace_id;

use super::app::App;
use super::volume_mounts::checked_path;
use crate::lifecycle::NewSandbox;
use isopod_files::workspace::{EXECUTION_KEY, Workspace};

/// Variables by which programs tell the code in a sandbox where its files are.
const BASE_PATH: &str = "STORAGE_BASE_PATH";
const EXECUTION_ID: &str = "EXECUTION_ID";
const BUCKETS: [&str; 3] = ["S3_BUCKET", "ROMA_S3_BUCKET", "S3_BUCKET_NAME"];

/// Start-up scripts of programs that mount files themselves make this file when they are done, and others wait for it.
const READY_FILE: &str = ".e2b_ready";

/// What the variables of a create ask for.
enum Asked {
    Nothing,
    /// Files of the workspace, at this path, of this execution.
    Files {
        base_path: Option<String>,
        id: Option<String>,
    },
    /// Files that this server does not have, and why.
    Elsewhere(String),
}

/// Adds the mount of an execution's files, if the sandbox gets one. The metadata of such a sandbox names its execution.
/// Returns a warning for the sandbox's log.
pub(super) fn attach(app: &App, wanted: &mut NewSandbox) -> Result<Option<String>, ApiError> {
    let Some(workspace) = app.workspace.as_ref().filter(|workspace| workspace.reads_metadata()) else {
        return Ok(None);
    };
    if let Some(id) = wanted.metadata.get(EXECUTION_KEY) {
        let id = checked_id(&format!("metadata {EXECUTION_KEY}"), id)?;
        wanted.mounts.push(workspace.execution_mount(id));
        return Ok(None);
    }
    match asked_by_variables(workspace, wanted)? {
        Asked::Elsewhere(why) => Ok(Some(format!("{why}: nothing is mounted"))),
        Asked::Nothing => {
            attach_default(workspace, wanted, None);
            Ok(None)
        }
        Asked::Files { base_path, id: Some(id) } => {
            mount(workspace, wanted, id, base_path.as_deref());
            Ok(None)
        }
        Asked::Files { base_path, id: None } => {
            let is_mounted = attach_default(workspace, wanted, base_path.as_deref());
            Ok((!is_mounted).then(|| format!("there is no {EXECUTION_ID} in the variables: nothing is mounted")))
        }
    }
}

/// A name alone asks for nothing: other programs have variables of these names too. What cannot be this server's
/// workspace is the business of the code inside.
fn asked_by_variables(workspace: &Workspace, wanted: &NewSandbox) -> Result<Asked, ApiError> {
    let variable = |name: &str| wanted.env.get(name).map(String::as_str).filter(|value| !value.is_empty());
    let bucket = BUCKETS.iter().find_map(|name| Some((*name, variable(name)?)));
    let base_path = variable(BASE_PATH);
    if bucket.is_none() && base_path.is_none() {
        return Ok(Asked::Nothing);
    }
    if let Some((name, bucket)) = bucket.filter(|(_, bucket)| workspace.bucket() != Some(*bucket)) {
        return Ok(Asked::Elsewhere(format!("{name} is {:?}, not this server's workspace", shown(bucket))));
    }
    let base_path = match base_path.map(|path| checked_path(BASE_PATH, path)).transpose() {
        Ok(base_path) => base_path,
        Err(refused) => return Ok(Asked::Elsewhere(shown(refused.message()))),
    };
    let id = variable(EXECUTION_ID).map(|id| checked_id(&format!("envVars: {EXECUTION_ID}"), id));
    Ok(Asked::Files { base_path, id: id.transpose()?.map(str::to_owned) })
}

/// The operator's default is no reason to refuse what works without it. Code inside finds the files by the variables.
fn attach_default(workspace: &Workspace, wanted: &mut NewSandbox, base_path: Option<&str>) -> bool {
    let names = [Some(wanted.template.id.as_str()), wanted.template.alias.as_deref()];
    let names: Vec<&str> = names.into_iter().flatten().collect();
    let default = workspace.default_mounts().execution_of(&wanted.team.0, &names);
    let default = default.filter(|id| is_workspace_id(id) && !isopod_wire::asks_for_fuse(&wanted.all_metadata()));
    let Some(id) = default else { return false };
    wanted.env.entry(BASE_PATH.to_owned()).or_insert_with(|| workspace.base_path().to_owned());
    wanted.env.entry(EXECUTION_ID.to_owned()).or_insert_with(|| id.clone());
    mount(workspace, wanted, id, base_path);
    true
}

fn mount(workspace: &Workspace, wanted: &mut NewSandbox, id: String, base_path: Option<&str>) {
    let mut mount = workspace.execution_mount(&id);
    let base_path = base_path.unwrap_or(workspace.base_path());
    mount.path = format!("{base_path}/{}", mount.subtree);
    mount.ready_file = Some(format!("{base_path}/{READY_FILE}"));
    wanted.mounts.push(mount);
    wanted.metadata.insert(EXECUTION_KEY.to_owned(), id);
}

fn checked_id<'a>(what: &str, id: &'a str) -> Result<&'a str, ApiError> {
    if is_workspace_id(id) {
        return Ok(id);
    }
    let rule = "1 to 128 letters, digits, '.', '_' and '-', and must not start with a dot";
    Err(ApiError::bad_request(format!("{what} must have {rule}")))
}

fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}
