//! A backend in plain Rust: it keeps sandboxes in a map, understands a few commands, and fails on demand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use isopod_client::interpreter::{CodeError, CodeResult, Executed, RunCode};
use isopod_guest_client::Reservation;
use isopod_service::backend::{
    Backend, BackendError, BackendSandbox, BackendState, Command, CommandEnd, CommandEvent, CommandLine, CommandStream,
    CreateSpec, Effect, FileBody, FileRead, Place,
};
use isopod_wire::SandboxId;

#[derive(Debug, Default)]
pub struct FakeBackend {
    pub sandboxes: Mutex<HashMap<SandboxId, BackendSandbox>>,
    pub files: Mutex<HashMap<(SandboxId, String), Vec<u8>>>,
    pub specs: Mutex<Vec<CreateSpec>>,
    pub commands: Mutex<Vec<Command>>,
    pub creates: AtomicU64,
    /// This many of the next creates fail transiently.
    pub create_fails: AtomicU64,
    /// Creates fail permanently.
    pub create_broken: AtomicBool,
    /// Creates succeed without a response.
    pub create_reply_lost: AtomicBool,
    pub create_takes_ms: AtomicU64,
    pub resume_takes_ms: AtomicU64,
    /// Writing a file takes this long.
    pub write_takes_ms: AtomicU64,
    /// The next pushes fail, each with the next of these texts.
    pub push_errors: Mutex<VecDeque<&'static str>>,
    /// Clones go on until their time is up.
    pub clone_hangs: AtomicBool,
    /// What was done in sandboxes, in order.
    pub steps: Mutex<Vec<String>>,
    pub timeouts: Mutex<Vec<Duration>>,
    pub is_down: AtomicBool,
    /// Every call fails with this.
    pub refusal: Mutex<Option<fn() -> BackendError>>,
}

impl FakeBackend {
    pub fn count(&self) -> usize {
        self.sandboxes.lock().unwrap().len()
    }

    /// The sandbox vanishes without a report.
    pub fn lose(&self, id: &str) {
        self.sandboxes.lock().unwrap().remove(&id.parse::<SandboxId>().unwrap()).unwrap();
    }

    /// A sandbox without a record.
    pub fn stray(&self, metadata: BTreeMap<String, String>) -> SandboxId {
        self.put("stray", metadata).id
    }

    fn put(&self, template: &str, metadata: BTreeMap<String, String>) -> BackendSandbox {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id: SandboxId = format!("ib{}", NEXT.fetch_add(1, Ordering::Relaxed)).parse().unwrap();
        let now = SystemTime::now();
        let made = BackendSandbox {
            id: id.clone(),
            template: template.to_owned(),
            state: BackendState::Running,
            started_at: now,
            ends_at: now + Duration::from_secs(60),
            metadata,
        };
        self.sandboxes.lock().unwrap().insert(id, made.clone());
        made
    }

    fn note(&self, step: String) {
        self.steps.lock().unwrap().push(step);
    }

    /// The calls of a verb of git.
    pub fn git_calls(&self, verb: &str) -> Vec<String> {
        let start = format!("git {verb} ");
        let lines: Vec<_> = self.commands.lock().unwrap().iter().map(|command| shown(&command.line)).collect();
        lines.into_iter().filter(|line| line.starts_with(&start)).collect()
    }

    /// What a command does that is told to fail, if this is one.
    async fn fail_git(&self, line: &str, timeout: Duration) -> Option<Vec<Result<CommandEvent, BackendError>>> {
        if line.starts_with("git push ") {
            let text = self.push_errors.lock().unwrap().pop_front()?;
            let said = Ok(CommandEvent::Stderr(Bytes::from_static(text.as_bytes())));
            return Some(vec![Ok(CommandEvent::Started(7)), said, ended(1, false)]);
        }
        if line.starts_with("git clone ") && self.clone_hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(timeout).await;
            return Some(vec![Ok(CommandEvent::Started(7)), ended(-1, true)]);
        }
        None
    }

    fn check_up(&self) -> Result<(), BackendError> {
        if let Some(refusal) = *self.refusal.lock().unwrap() {
            return Err(refusal());
        }
        if self.is_down.load(Ordering::Relaxed) { Err(unavailable(Effect::None)) } else { Ok(()) }
    }
}

/// The port on which an app listens.
pub const LISTENING: u16 = 8080;

fn shown(line: &CommandLine) -> String {
    match line {
        CommandLine::Shell(line) => line.clone(),
        CommandLine::Argv { program, arguments } => format!("{program} {}", arguments.join(" ")),
    }
}

pub fn unavailable(effect: Effect) -> BackendError {
    BackendError::Unavailable {
        message: "injected".to_owned(),
        retry_after: None,
        effect,
        place: Place::Backend,
        source: None,
    }
}

fn ended(exit_code: i32, timed_out: bool) -> Result<CommandEvent, BackendError> {
    let status = format!("exit status {exit_code}");
    Ok(CommandEvent::Ended(CommandEnd { exit_code, status, timed_out, duration: Duration::from_millis(3) }))
}

/// Understands `serve`, which says something and goes on, `echo WORDS`, `fail CODE`, `both`, `slow` and `break`. Everything else is echoed.
fn run(line: &str, timeout: Duration) -> Vec<Result<CommandEvent, BackendError>> {
    let out = |text: String| Ok(CommandEvent::Stdout(Bytes::from(text)));
    let start = Ok(CommandEvent::Started(7));
    match line.split_once(' ').unwrap_or((line, "")) {
        ("echo", words) => vec![start, out(format!("{words}\n")), ended(0, false)],
        ("fail", code) => vec![start, ended(code.parse().unwrap(), false)],
        ("big", size) => vec![start, out("x".repeat(size.parse().unwrap())), ended(0, false)],
        ("both", _) => {
            let said = Ok(CommandEvent::Stderr(Bytes::from_static(b"err\n")));
            vec![start, out("out\n".to_owned()), said, ended(0, false)]
        }
        ("slow", _) if timeout < Duration::from_secs(5) => vec![start, out("begun".to_owned()), ended(-1, true)],
        ("break", _) => vec![start, Err(unavailable(Effect::Unknown))],
        _ => vec![start, out(line.to_owned()), ended(0, false)],
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        self.creates.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(self.create_takes_ms.load(Ordering::Relaxed))).await;
        self.check_up()?;
        if spec.template == "nowhere" {
            return Err(BackendError::not_found("template 'nowhere' not found"));
        }
        if self.create_broken.load(Ordering::Relaxed) {
            return Err(BackendError::internal("a secret of the backend"));
        }
        if self.create_fails.load(Ordering::Relaxed) > 0 {
            self.create_fails.fetch_sub(1, Ordering::Relaxed);
            return Err(unavailable(Effect::None));
        }
        self.specs.lock().unwrap().push(spec.clone());
        let made = self.put(&spec.template, spec.labelled_metadata());
        if self.create_reply_lost.load(Ordering::Relaxed) {
            return Err(BackendError::internal("the answer was lost"));
        }
        Ok(made)
    }

    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError> {
        self.check_up()?;
        let found = self.sandboxes.lock().unwrap().get(id).cloned();
        found.ok_or_else(|| BackendError::not_found(format!("no sandbox {id}")))
    }

    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError> {
        self.check_up()?;
        let all = self.sandboxes.lock().unwrap();
        let has = |one: &&BackendSandbox| metadata.iter().all(|(key, value)| one.metadata.get(key) == Some(value));
        Ok(all.values().filter(has).cloned().collect())
    }

    async fn start(&self, id: &SandboxId, command: Command) -> Result<CommandStream, BackendError> {
        self.status(id).await?;
        self.commands.lock().unwrap().push(command.clone());
        self.note(format!("run {}", shown(&command.line)));
        let line = shown(&command.line);
        let failing = self.fail_git(&line, command.timeout).await;
        let events = futures::stream::iter(failing.unwrap_or_else(|| run(line.trim(), command.timeout)));
        if line == "serve" {
            let begun = events.filter(|event| std::future::ready(!matches!(event, Ok(CommandEvent::Ended(_)))));
            return Ok(CommandStream::new(begun.chain(futures::stream::pending())));
        }
        Ok(CommandStream::new(events))
    }

    async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        _user: Option<&str>,
        contents: FileBody,
    ) -> Result<(), BackendError> {
        self.status(id).await?;
        tokio::time::sleep(Duration::from_millis(self.write_takes_ms.load(Ordering::Relaxed))).await;
        self.note(format!("write {path}"));
        if path.starts_with("/denied") {
            return Err(BackendError::invalid("permission denied"));
        }
        let bytes = match contents {
            FileBody::Bytes(bytes) => bytes.to_vec(),
            FileBody::Stream(mut pieces) => {
                let mut all = Vec::new();
                while let Some(piece) = pieces.next().await {
                    all.extend_from_slice(&piece.map_err(|error| BackendError::invalid(error.to_string()))?);
                }
                all
            }
        };
        self.files.lock().unwrap().insert((id.clone(), path.to_owned()), bytes);
        Ok(())
    }

    async fn read_file(&self, id: &SandboxId, path: &str, _user: Option<&str>) -> Result<FileRead, BackendError> {
        self.status(id).await?;
        let found = self.files.lock().unwrap().get(&(id.clone(), path.to_owned())).cloned();
        let bytes = found.ok_or_else(|| BackendError::not_found(format!("no file {path}")))?;
        let size = Some(bytes.len() as u64);
        Ok(FileRead { size, body: futures::stream::iter([Ok(Bytes::from(bytes))]).boxed() })
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.status(id).await?;
        self.sandboxes.lock().unwrap().get_mut(id).unwrap().state = BackendState::Paused;
        Ok(())
    }

    async fn resume(&self, id: &SandboxId, _timeout: Duration) -> Result<BackendSandbox, BackendError> {
        self.status(id).await?;
        tokio::time::sleep(Duration::from_millis(self.resume_takes_ms.load(Ordering::Relaxed))).await;
        self.sandboxes.lock().unwrap().get_mut(id).unwrap().state = BackendState::Running;
        self.status(id).await
    }

    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), BackendError> {
        self.status(id).await?;
        self.timeouts.lock().unwrap().push(timeout);
        self.sandboxes.lock().unwrap().get_mut(id).unwrap().ends_at = SystemTime::now() + timeout;
        Ok(())
    }

    /// Prints the code, and fails or takes too long if it says so.
    async fn run_code(
        &self,
        id: &SandboxId,
        code: RunCode,
        _memory: &mut Reservation,
    ) -> Result<Executed, BackendError> {
        self.status(id).await?;
        self.note(format!("code {}", code.language.as_deref().unwrap_or("python")));
        if code.code.contains("forever") {
            let limit = code.timeout.unwrap();
            return Err(BackendError::Timeout { what: "code".to_owned(), limit, place: Place::Sandbox });
        }
        let is_wrong = code.code.contains("raise");
        let text = |text: &str| text.to_owned();
        let error = CodeError { name: text("E"), value: text("v"), traceback: text("t") };
        let result = CodeResult { text: Some(text("42")), is_main_result: true, ..CodeResult::default() };
        Ok(Executed {
            stdout: format!("{}\nlast", code.code),
            results: if is_wrong { Vec::new() } else { vec![result] },
            error: is_wrong.then_some(error),
            ..Executed::default()
        })
    }

    async fn is_listening(&self, id: &SandboxId, port: u16) -> Result<bool, BackendError> {
        self.status(id).await?;
        Ok(port == LISTENING)
    }

    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError> {
        self.check_up()?;
        Ok(self.sandboxes.lock().unwrap().remove(id).is_some())
    }
}

/// Kept by the test, passed to the server.
pub fn fake() -> Arc<FakeBackend> {
    Arc::default()
}
