//! `run_command`: a line in the sandbox's shell.

use std::collections::BTreeMap;

use isopod_client::Sandbox;
use isopod_client::guest::{Ended, Event, GuestError, Process, Signal, StartProcess};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Answered, Call, Effect, McpTool, Where, time_limit};
use crate::output::{Kept, sections};
use crate::reporter::{Reporter, Stream};
use crate::sandboxes::unique;
use crate::tool_error::ToolError;

/// Runs `$2` with its output in `$1`.
const INTO_LOG: &str = r#"exec >"$1" 2>&1 </dev/null; eval "$2""#;

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RunCommandArgs {
    /// The line, for a login shell (bash).
    command: String,
    /// Working directory. Default: the user's home.
    #[serde(default)]
    cwd: Option<String>,
    /// Additional environment variables.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// User, such as `root`. Default: the sandbox's user.
    #[serde(default)]
    user: Option<String>,
    /// Time limit in seconds, after which the command is killed. Default: 300.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    timeout_seconds: Option<u32>,
    /// Return at once and let the command run, such as a server. Its output goes to a file that the result names.
    #[serde(default)]
    background: bool,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CommandAnswer {
    /// The sandbox that ran it.
    sandbox: String,
    /// The exit code, or -1 if a signal ended it. Missing in the background.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// How it ended, such as `exit status 1` or `signal: killed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Standard output. If it was too long, a line in the middle says how much is missing.
    stdout: String,
    /// Standard error.
    stderr: String,
    /// Whether output is left out.
    truncated: bool,
    /// In the background: its process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// In the background: the file with its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

impl McpTool for RunCommandArgs {
    const NAME: &'static str = "run_command";
    const TITLE: &'static str = "Run a command";
    const DESCRIPTION: &'static str = "Runs a shell command in a sandbox and returns its output and exit code. A command that \
        fails is a result, not an error. Use `background` for servers, and preview_url to reach them.";
    const EFFECT: Effect = Effect::DestroysInOpenWorld;
    type Answer = CommandAnswer;

    async fn run(self, call: Call) -> Result<Answered<CommandAnswer>, ToolError> {
        if self.command.trim().is_empty() {
            return Err(ToolError::new("`command` is empty"));
        }
        let is_background = self.background;
        let log = format!("/tmp/command-{}.log", unique());
        let mut start = match is_background {
            true => StartProcess::new("/bin/bash").args(["-l", "-c", INTO_LOG, "bash", &log, &self.command]),
            false => StartProcess::shell(&self.command).timeout(time_limit(self.timeout_seconds)),
        };
        (start.cwd, start.user, start.envs) = (self.cwd, self.user, self.env);
        let sandbox = call.sandbox(self.place).await?;
        match is_background {
            true => in_background(&call, &sandbox, start, log).await,
            false => in_foreground(&call, sandbox, start).await,
        }
    }
}

async fn in_background(
    call: &Call,
    sandbox: &Sandbox,
    start: StartProcess,
    log: String,
) -> Result<Answered<CommandAnswer>, ToolError> {
    let process = match sandbox.guest().start(start).await {
        Ok(process) => process,
        Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
    };
    let pid = process.pid();
    let text = format!("Runs in the background as process {pid}. Its output is in {log}.");
    let structured = CommandAnswer {
        sandbox: sandbox.id().to_string(),
        exit_code: None,
        status: None,
        stdout: String::new(),
        stderr: String::new(),
        truncated: false,
        pid: Some(pid),
        log: Some(log),
    };
    Ok(Answered::text(text, structured))
}

async fn in_foreground(
    call: &Call,
    sandbox: Sandbox,
    start: StartProcess,
) -> Result<Answered<CommandAnswer>, ToolError> {
    let stop = CancellationToken::new();
    // Dropped when the call is cancelled. The task then kills the command, even if it is just being started.
    let _stopped = stop.clone().drop_guard();
    let (reporter, max) = (call.audience.reporter(), call.max_output());
    let mut seen = Seen { stdout: Kept::up_to(max), stderr: Kept::up_to(max) };
    let guest = sandbox.guest().clone();
    let task = call.sandboxes.tasks.spawn(async move {
        let ended = match guest.start(start).await {
            Ok(process) => seen.follow(process, &reporter, &stop).await,
            Err(error) => Err(error),
        };
        reporter.finish().await;
        (seen, ended)
    });
    let Ok((seen, ended)) = task.await else { return Err(ToolError::cancelled()) };
    match ended {
        Ok(Some(ended)) => Ok(seen.answer(&sandbox, ended)),
        Ok(None) => Err(ToolError::cancelled()),
        Err(error) if error.is_timeout() => {
            let output = sections(&seen.stdout.text(), &seen.stderr.text());
            Err(ToolError::new("the time limit expired, and the command was killed")
                .hint("give a longer timeout_seconds, or let it run in the background")
                .output(output))
        }
        Err(error) => Err(call.sandboxes.explain(error, sandbox.id()).await),
    }
}

struct Seen {
    stdout: Kept,
    stderr: Kept,
}

impl Seen {
    /// `None` if the command was stopped.
    async fn follow(
        &mut self,
        mut process: Process,
        reporter: &Reporter,
        stop: &CancellationToken,
    ) -> Result<Option<Ended>, GuestError> {
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    process.handle().signal(Signal::Kill).await?;
                    return Ok(None);
                }
                event = process.next() => event?,
            };
            match event {
                Some(Event::Stdout(bytes) | Event::Pty(bytes)) => {
                    reporter.wrote(Stream::Stdout, &bytes);
                    self.stdout.push(&bytes);
                }
                Some(Event::Stderr(bytes)) => {
                    reporter.wrote(Stream::Stderr, &bytes);
                    self.stderr.push(&bytes);
                }
                Some(Event::End(ended)) => return Ok(Some(ended)),
                Some(Event::Started(_)) => {}
                None => return Err(GuestError::Protocol("the process had already ended".to_owned())),
            }
        }
    }

    fn answer(self, sandbox: &Sandbox, ended: Ended) -> Answered<CommandAnswer> {
        let (stdout, stderr) = (self.stdout.text(), self.stderr.text());
        let truncated = self.stdout.is_truncated() || self.stderr.is_truncated();
        let mut text = sections(&stdout, &stderr);
        if !ended.is_success() {
            text.push_str(&format!("\n[{}]", ended.status));
        } else if text.is_empty() {
            text.push_str("(no output)");
        }
        if truncated {
            text.push_str("\n[The output was too long; the middle is left out. Write to a file to keep all of it.]");
        }
        let structured = CommandAnswer {
            sandbox: sandbox.id().to_string(),
            exit_code: Some(ended.exit_code),
            status: Some(ended.status),
            stdout,
            stderr,
            truncated,
            pid: None,
            log: None,
        };
        Answered::text(text.trim_start_matches('\n'), structured)
    }
}
