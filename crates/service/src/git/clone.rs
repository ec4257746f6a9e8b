//! Clones a repository, or leaves nothing: git works in a directory of its own, which is renamed when all is done. So a
//! clone that fails halfway can be repeated, and nothing that was there before is ever removed.

use isopod_store::secrets::new_uuid;
use isopod_store::service::ServiceSandbox;
use isopod_wire::node::Secret;
use serde_json::{Value, json};

use super::{GIT_TIMEOUT, REPOSITORY, check_ref, check_url, text};
use crate::backend::Command;
use crate::pause::live_sandbox;
use crate::{Service, ServiceError};

/// Creates the directory and gives it to the user who works in it.
const MAKE_WORKSPACE: &str =
    "mkdir -p /workspace && chown \"$(stat -c %u:%g /home/user 2>/dev/null || echo 0:0)\" /workspace";

/// `mv` alone would move it into a directory of that name.
const MOVE: &str = "if [ -n \"$(ls -A \"$2\" 2>/dev/null)\" ]; then \
    echo \"$2 already exists and is not an empty directory\" >&2; exit 1; fi; mv -T -- \"$1\" \"$2\"";

const REMOVE: &str = "rm -rf -- \"$1\"";

impl Service {
    pub(super) async fn clone_repository(
        &self,
        row: &ServiceSandbox,
        repo_url: &str,
        branch: Option<String>,
        token: Option<Secret>,
    ) -> Result<Value, ServiceError> {
        check_url(repo_url)?;
        branch.as_deref().map(check_ref).transpose()?;
        self.run_script(row, MAKE_WORKSPACE, &[], Some("root")).await?;
        let place = format!("/workspace/.clone-{}", new_uuid());
        let cloned = self.clone_to(row, &place, repo_url, branch.as_deref(), token.as_ref()).await;
        if cloned.is_err() {
            self.remove_clone(row, &place).await;
        }
        cloned
    }

    async fn clone_to(
        &self,
        row: &ServiceSandbox,
        place: &str,
        repo_url: &str,
        branch: Option<&str>,
        token: Option<&Secret>,
    ) -> Result<Value, ServiceError> {
        let mut arguments = vec!["clone", "--quiet"];
        if let Some(branch) = branch {
            arguments.extend(["--branch", branch]);
        }
        arguments.extend(["--", repo_url, place]);
        self.run_git_in(row, "/", &arguments, token, self.config.clone_timeout).await?;
        let branch_name = self.current_branch_in(row, place).await?;
        let commit = self.head_in(row, place).await?;
        self.run_script(row, MOVE, &[place, REPOSITORY], None).await?;
        let mut saved = row.clone();
        saved.repo_url = Some(repo_url.to_owned());
        saved.branch_name = Some(branch_name.clone());
        if let Err(error) = self.store.save_service_sandbox(&saved).await {
            self.remove_clone(row, REPOSITORY).await;
            return Err(error.into());
        }
        Ok(json!({ "path": REPOSITORY, "branch": branch_name, "commit_sha": commit }))
    }

    /// The caller gets the error that led here. If this fails too, the sandbox is probably gone.
    async fn remove_clone(&self, row: &ServiceSandbox, place: &str) {
        if let Err(error) = self.run_script(row, REMOVE, &[place], None).await {
            let error = isopod_wire::error_chain(&error);
            tracing::warn!(sandbox = row.id, error, "could not remove an unfinished clone");
        }
    }

    async fn run_script(
        &self,
        row: &ServiceSandbox,
        script: &str,
        arguments: &[&str],
        user: Option<&str>,
    ) -> Result<(), ServiceError> {
        let sandbox = live_sandbox(row)?;
        let mut command = Command::argv("/bin/sh", ["-c", script, "sh"].iter().chain(arguments).copied());
        command.user = user.map(str::to_owned);
        command.timeout = GIT_TIMEOUT;
        let mut memory = self.fleet.memory.of(&row.team).reserve();
        let output = self.backend.execute_within(&sandbox, command, &mut memory).await?;
        if output.exit_code == 0 { Ok(()) } else { Err(ServiceError::Git(text(&output.stderr).trim().to_owned())) }
    }
}
