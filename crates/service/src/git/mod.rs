//! Git in a sandbox, for agents: clone, branch, commit, push and history in `/workspace/repo`.
//!
//! Git gets a token as a header through its environment, so the token is in no command line, file, history or log. It
//! is also removed from git's output. Credential helpers are off, and git never prompts.

mod clone;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::service::{GitRow, Record, ServiceSandbox};
use isopod_wire::node::Secret;
use serde_json::{Value, json};

use crate::access::{Access, Operation};
use crate::backend::{Command, Output};
use crate::pause::live_sandbox;
use crate::{Service, ServiceError};

const REPOSITORY: &str = "/workspace/repo";
const AUTHOR: (&str, &str) = ("Agent Squad Bot", "bot@agentsquad.dev");
const GIT_TIMEOUT: Duration = Duration::from_secs(60);
const PUSH_TRIES: u32 = 3;
const HISTORY: u32 = 20;
/// Separates the fields of a line. Commit messages do not contain it.
const SEPARATOR: char = '\u{1f}';

/// A git operation.
#[derive(Clone, Debug)]
pub(crate) enum GitAction {
    Clone {
        repo_url: String,
        branch: Option<String>,
        token: Option<Secret>,
    },
    /// A branch for the sandbox's task, or of this name.
    Branch {
        name: Option<String>,
    },
    Commit {
        message: String,
        paths: Vec<String>,
    },
    Push {
        token: Option<Secret>,
    },
}

/// The result of a git operation.
#[derive(Clone, Debug)]
pub(crate) struct GitReply {
    pub(crate) sandbox: String,
    pub(crate) data: Value,
}

impl GitAction {
    fn name(&self) -> &'static str {
        match self {
            Self::Clone { .. } => "clone",
            Self::Branch { .. } => "branch",
            Self::Commit { .. } => "commit",
            Self::Push { .. } => "push",
        }
    }
}

impl Service {
    pub(crate) async fn git(
        self: &Arc<Self>,
        access: &Access,
        id: &str,
        action: GitAction,
    ) -> Result<GitReply, ServiceError> {
        let row = self.find(access, Operation::Write, id).await?;
        live_sandbox(&row)?;
        let name = action.name();
        let done = match action {
            GitAction::Clone { repo_url, branch, token } => self.clone_repository(&row, &repo_url, branch, token).await,
            GitAction::Branch { name } => self.branch(&row, name).await,
            GitAction::Commit { message, paths } => self.commit(&row, &message, &paths).await,
            GitAction::Push { token } => self.push(&row, token).await,
        };
        self.record_git(&row, name, done.as_ref()).await;
        done.map(|data| GitReply { sandbox: row.id.clone(), data })
    }

    /// The last commits, newest first.
    pub(crate) async fn git_history(&self, access: &Access, id: &str) -> Result<GitReply, ServiceError> {
        let row = self.find(access, Operation::Read, id).await?;
        // `git log` fails in a repository without commits.
        if self.head(&row).await?.is_none() {
            return Ok(GitReply { sandbox: row.id, data: json!({ "commits": [] }) });
        }
        let format = format!("--format=%H{SEPARATOR}%an{SEPARATOR}%aI{SEPARATOR}%s");
        let count = format!("-{HISTORY}");
        let output = self.run_git(&row, &["log", &count, &format], None, GIT_TIMEOUT).await?;
        let commits: Vec<Value> = text(&output.stdout)
            .lines()
            .filter_map(|line| {
                let mut fields = line.splitn(4, SEPARATOR);
                let mut next = || fields.next();
                Some(json!({ "sha": next()?, "author": next()?, "date": next()?, "message": next()? }))
            })
            .collect();
        Ok(GitReply { sandbox: row.id, data: json!({ "commits": commits }) })
    }

    async fn branch(&self, row: &ServiceSandbox, name: Option<String>) -> Result<Value, ServiceError> {
        let wanted = match (name, &row.task) {
            (Some(name), _) => name,
            (None, Some(task)) => format!("task-{task}"),
            (None, None) => return Err(ServiceError::invalid("name the branch, because the sandbox has no task")),
        };
        check_ref(&wanted)?;
        let reference = format!("refs/heads/{wanted}");
        let exists = self.git_status(row, &["show-ref", "--verify", "--quiet", &reference]).await? == 0;
        // If the name is taken, the time is appended.
        let branch = if exists { format!("{wanted}-{}", Timestamp::now().0) } else { wanted };
        self.run_git(row, &["checkout", "--quiet", "-b", &branch], None, GIT_TIMEOUT).await?;
        let mut saved = row.clone();
        saved.branch_name = Some(branch.clone());
        self.store.save_service_sandbox(&saved).await?;
        if let Some(task) = &row.task {
            self.store.note_task(&row.team, task, None, Some(&branch), None).await?;
        }
        Ok(json!({ "branch": branch }))
    }

    async fn commit(&self, row: &ServiceSandbox, message: &str, paths: &[String]) -> Result<Value, ServiceError> {
        check_message(message)?;
        let mut add = vec!["add", "--all", "--"];
        if paths.is_empty() {
            add.push(".");
        }
        add.extend(paths.iter().map(String::as_str));
        self.run_git(row, &add, None, GIT_TIMEOUT).await?;
        self.run_git(row, &["commit", "--quiet", "-m", message], None, GIT_TIMEOUT).await?;
        Ok(json!({ "commit_sha": self.head(row).await? }))
    }

    async fn push(&self, row: &ServiceSandbox, token: Option<Secret>) -> Result<Value, ServiceError> {
        let branch = self.current_branch(row).await?;
        let arguments = ["push", "--quiet", "-u", "origin", branch.as_str()];
        let (mut tries, mut wait) = (0, self.config.push_wait);
        loop {
            tries += 1;
            match self.run_git(row, &arguments, token.as_ref(), GIT_TIMEOUT).await {
                Ok(_) => break,
                Err(ServiceError::Git(why)) if tries < PUSH_TRIES && !is_refusal(&why) => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(json!({ "branch": branch, "commit_sha": self.head(row).await? }))
    }

    /// The last commit. `None` if there is none yet.
    async fn head(&self, row: &ServiceSandbox) -> Result<Option<String>, ServiceError> {
        self.head_in(row, REPOSITORY).await
    }

    async fn head_in(&self, row: &ServiceSandbox, cwd: &str) -> Result<Option<String>, ServiceError> {
        self.ask_git(row, cwd, &["rev-parse", "--verify", "--quiet", "HEAD"]).await
    }

    async fn current_branch(&self, row: &ServiceSandbox) -> Result<String, ServiceError> {
        self.current_branch_in(row, REPOSITORY).await
    }

    /// The branch, even if it has no commit yet, or `HEAD` if a tag or commit is checked out.
    async fn current_branch_in(&self, row: &ServiceSandbox, cwd: &str) -> Result<String, ServiceError> {
        let branch = self.ask_git(row, cwd, &["symbolic-ref", "--quiet", "--short", "HEAD"]).await?;
        Ok(branch.unwrap_or_else(|| "HEAD".to_owned()))
    }

    /// The answer to a question that git answers with 0, or with 1 and nothing if there is no answer.
    async fn ask_git(
        &self,
        row: &ServiceSandbox,
        cwd: &str,
        question: &[&str],
    ) -> Result<Option<String>, ServiceError> {
        let sandbox = live_sandbox(row)?;
        let mut memory = self.fleet.memory.of(&row.team).reserve();
        let command = git_command(cwd, question, None, GIT_TIMEOUT);
        let output = self.backend.execute_within(&sandbox, command, &mut memory).await?;
        match output.exit_code {
            0 => Ok(Some(text(&output.stdout).trim().to_owned())),
            1 => Ok(None),
            _ => Err(ServiceError::Git(text(&output.stderr).trim().chars().take(2000).collect())),
        }
    }

    async fn git_status(&self, row: &ServiceSandbox, arguments: &[&str]) -> Result<i32, ServiceError> {
        let sandbox = live_sandbox(row)?;
        let command = git_command(REPOSITORY, arguments, None, GIT_TIMEOUT);
        let mut memory = self.fleet.memory.of(&row.team).reserve();
        Ok(self.backend.execute_within(&sandbox, command, &mut memory).await?.exit_code)
    }

    async fn run_git(
        &self,
        row: &ServiceSandbox,
        arguments: &[&str],
        token: Option<&Secret>,
        timeout: Duration,
    ) -> Result<Output, ServiceError> {
        self.run_git_in(row, REPOSITORY, arguments, token, timeout).await
    }

    async fn run_git_in(
        &self,
        row: &ServiceSandbox,
        cwd: &str,
        arguments: &[&str],
        token: Option<&Secret>,
        timeout: Duration,
    ) -> Result<Output, ServiceError> {
        let sandbox = live_sandbox(row)?;
        let command = git_command(cwd, arguments, token, timeout);
        let mut memory = self.fleet.memory.of(&row.team).reserve();
        let output = match self.backend.execute_within(&sandbox, command, &mut memory).await {
            Ok(output) => output,
            Err(error) => return Err(self.explain(row, error).await),
        };
        if output.timed_out {
            return Err(ServiceError::Git(format!("it took longer than {timeout:?}")));
        }
        if output.exit_code != 0 {
            let stderr = cleaned(&text(&output.stderr), token);
            return Err(ServiceError::Git(stderr.trim().chars().take(2000).collect()));
        }
        Ok(output)
    }

    async fn record_git(&self, row: &ServiceSandbox, operation: &'static str, done: Result<&Value, &ServiceError>) {
        let commit_sha = done.ok().and_then(|data| data["commit_sha"].as_str()).map(str::to_owned);
        let error = done.err().map(ToString::to_string);
        let data = json!({
            "sandbox_id": row.id, "task_id": row.task, "operation": operation,
            "status": if error.is_none() { "success" } else { "failed" },
            "commit_sha": commit_sha, "error": error,
        });
        self.hub.publish(&row.team, row.agent.as_deref(), "git_operation", data);
        let entry = GitRow {
            id: new_uuid(),
            team: row.team.clone(),
            sandbox: row.id.clone(),
            operation,
            ok: error.is_none(),
            commit_sha,
            error,
            at: Timestamp::now(),
        };
        self.recorder.note(Record::Git(entry)).await;
    }
}

/// Builds a git command. Settings are passed in the environment: they end with the command, and process lists do not
/// show them to other users.
fn git_command(cwd: &str, arguments: &[&str], token: Option<&Secret>, timeout: Duration) -> Command {
    let mut command = Command::argv("git", arguments.iter().copied());
    command.cwd = Some(cwd.to_owned());
    command.timeout = timeout;
    let mut settings = vec![("credential.helper".to_owned(), String::new())];
    if let Some(token) = token {
        settings.push(("http.extraHeader".to_owned(), format!("Authorization: Basic {}", basic(token))));
    }
    command.env.insert("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string());
    for (index, (key, value)) in settings.into_iter().enumerate() {
        command.env.insert(format!("GIT_CONFIG_KEY_{index}"), key);
        command.env.insert(format!("GIT_CONFIG_VALUE_{index}"), value);
    }
    for (name, value) in [
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_AUTHOR_NAME", AUTHOR.0),
        ("GIT_AUTHOR_EMAIL", AUTHOR.1),
        ("GIT_COMMITTER_NAME", AUTHOR.0),
        ("GIT_COMMITTER_EMAIL", AUTHOR.1),
    ] {
        command.env.insert(name.to_owned(), value.to_owned());
    }
    command
}

/// As the usual hosts accept tokens.
fn basic(token: &Secret) -> String {
    STANDARD.encode(format!("x-access-token:{}", token.0))
}

fn cleaned(said: &str, token: Option<&Secret>) -> String {
    let Some(token) = token.filter(|token| !token.0.is_empty()) else { return said.to_owned() };
    said.replace(&basic(token), "***").replace(&token.0, "***")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a retry cannot help.
fn is_refusal(why: &str) -> bool {
    ["[rejected]", "Authentication failed", "Permission denied", "not found", "protected branch", "403"]
        .iter()
        .any(|word| why.contains(word))
}

/// Checks a URL. One with a password is refused, because it would be stored with the sandbox.
fn check_url(url: &str) -> Result<(), ServiceError> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let is_known = ["https", "http", "file", "git", "ssh"].contains(&scheme);
    let has_password = scheme.starts_with("http") && rest.split('/').next().unwrap_or_default().contains('@');
    if !is_known || url.len() > 2048 || url.chars().any(char::is_control) {
        return Err(ServiceError::invalid("repo_url must be an https, http, ssh, git or file URL"));
    }
    if has_password {
        return Err(ServiceError::invalid("repo_url must not contain a user name or token; send the token as token"));
    }
    Ok(())
}

/// Checks a branch name. Only a subset of what git allows is accepted, which cannot be mistaken for an option.
fn check_ref(name: &str) -> Result<(), ServiceError> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let is_bad = name.is_empty()
        || name.len() > 200
        || !name.chars().all(is_fine)
        || name.starts_with(['-', '/', '.'])
        || name.ends_with(['/', '.'])
        || ["..", "//", "/."].iter().any(|bad| name.contains(bad))
        || name.ends_with(".lock");
    if is_bad { Err(ServiceError::invalid("this is not a valid branch name")) } else { Ok(()) }
}

/// Checks the first line: `^(feat|fix|docs|chore|refactor|test|ci)(\(.+\))?!?: .{1,100}$`.
fn check_message(message: &str) -> Result<(), ServiceError> {
    let is_good = || {
        let first = message.lines().next()?;
        let (head, subject) = first.split_once(": ")?;
        let head = head.strip_suffix('!').unwrap_or(head);
        let kind = match head.split_once('(') {
            Some((kind, scope)) => scope.strip_suffix(')').filter(|scope| !scope.is_empty()).map(|_| kind)?,
            None => head,
        };
        let kinds = ["feat", "fix", "docs", "chore", "refactor", "test", "ci"];
        (kinds.contains(&kind) && (1..=100).contains(&subject.chars().count())).then_some(())
    };
    if is_good().is_some() && message.len() <= 64 << 10 {
        return Ok(());
    }
    Err(ServiceError::invalid("message must be a conventional commit such as \"feat(api): add a verb\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_conventional_commits() {
        for good in ["feat: x", "fix(api)!: y", "ci: z\n\nbody", "docs(a b): c"] {
            assert!(check_message(good).is_ok(), "{good}");
        }
        let long = format!("feat: {}", "x".repeat(101));
        for bad in ["", "feat", "feat:x", "feature: x", "feat(): x", "feat(a: x", "Feat: x", "feat: ", &long] {
            assert!(check_message(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_in_no_argument_and_no_word_of_git() {
        let token = Secret("ghp_geheim".to_owned());
        let command = git_command("/", &["clone", "--", "https://host/x"], Some(&token), GIT_TIMEOUT);
        assert!(!format!("{:?}", command.line).contains("geheim"));
        assert_eq!(command.env["GIT_CONFIG_VALUE_0"], "");
        let stderr = format!("fatal: bad ghp_geheim and {}", basic(&token));
        assert_eq!(cleaned(&stderr, Some(&token)), "fatal: bad *** and ***");
        assert!(check_url("https://user:pass@host/x").is_err() && check_url("ext::sh -c x").is_err());
        assert!(check_url("--upload-pack=x").is_err() && check_url("https://host/x.git").is_ok());
    }

    #[test]
    fn branch_names_cannot_be_options_or_paths() {
        for bad in ["", "-x", "a..b", "/a", "a/", "a b", "a;b", "x.lock", "a//b", ".a"] {
            assert!(check_ref(bad).is_err(), "{bad}");
        }
        assert!(check_ref("task-7/part_2.1").is_ok());
    }
}
