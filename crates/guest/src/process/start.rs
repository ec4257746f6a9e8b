//! `Start`: starts a process and streams its events.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use isopod_wire::rpc::process::{PTY, ProcessConfig, StartRequest};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::environment::{DEFAULT_PATH, basic_environment};
use crate::http::Reply;
use crate::paths;
use crate::process::input::Input;
use crate::process::output::{CAPACITY, Output};
use crate::process::pump::{Pipe, pump};
use crate::process::stream::EventStream;
use crate::process::terminal::{TerminalEnds, TerminalName, window_size};
use crate::process::{Process, Processes};
use crate::rpc::{Call, Code, RpcError};
use crate::settings::Settings;
use crate::stdio::Source;
use crate::sys::{self, SpawnError, SpawnPlan, c_string};
use crate::users::User;

/// Starts the process; the reply's first event is `start`.
pub(crate) async fn start(processes: &Processes, call: Call, request: StartRequest) -> Result<Reply, RpcError> {
    let user = call.user()?;
    let _pass = processes.gate.pass().await;
    // Releases streams that have ended.
    processes.deliveries.read_reports();
    let config = request.process.into_option().unwrap_or_default();
    let streams = match request.pty.as_option() {
        Some(pty) => Streams::terminal(pty, &user)?,
        None => Streams::pipes(request.stdin.unwrap_or(true)).map_err(no_streams)?,
    };
    // Before the process can read `/proc`.
    let activity = processes.proc_overrides.begin();
    let pid = spawn(&config, &call.settings, &user, &streams)?;
    let Streams { input, pipes, terminal, .. } = streams;
    let process = Arc::new(Process {
        terminal,
        deadline: call.deadline,
        ..processes.new_process(pid, request.tag.clone(), config, input, Output::new(CAPACITY))
    });
    processes.outputs.add(&process, &pipes);
    let exit = processes.insert(Arc::clone(&process), activity);
    // The reader joins before the pump runs, so that the ring drops nothing unread.
    let stream = EventStream::new(&processes.deliveries, &call, Arc::clone(&process), None);
    tokio::spawn(pump(process, pipes, exit, processes.gate.clone()));
    Ok(stream.into_reply())
}

fn spawn(config: &ProcessConfig, settings: &Settings, user: &User, streams: &Streams) -> Result<Pid, RpcError> {
    let workdir = settings.default_workdir.as_deref();
    let cwd = paths::resolve(config.cwd.as_deref().unwrap_or_default(), user, workdir)
        .map_err(|error| RpcError::new(Code::InvalidArgument, error.to_string()))?;
    let env = environment(config, settings, user);
    let plan = SpawnPlan {
        programs: programs(&config.cmd, env.get("PATH").map_or(DEFAULT_PATH, String::as_str))?,
        argv: c_strings([&config.cmd].into_iter().chain(&config.args))?,
        env: environment_strings(&env)?,
        cwd: CString::new(cwd.as_os_str().as_bytes()).map_err(|_| nul())?,
        uid: user.uid,
        gid: user.gid,
        groups: user.groups(),
        stdio: streams.child.each_ref().map(|end| end.as_fd()),
        extra: None,
        terminal: matches!(streams.pipes[..], [(_, Source::Pty)]),
    };
    sys::spawn(&plan).map_err(|error| spawn_error(config, &cwd.to_string_lossy(), &error))
}

/// Why there is no process, with the code and in the words of E2B's daemon.
fn spawn_error(config: &ProcessConfig, cwd: &str, error: &SpawnError) -> RpcError {
    let cmd = &config.cmd;
    let failed = |cause: &io::Error, what: String| {
        RpcError::new(start_error_code(cause), format!("error starting process '{}': {what}", command_line(config)))
    };
    match error {
        SpawnError::Chdir(cause) if cause.raw_os_error() == Some(libc::ENOENT) => {
            RpcError::new(Code::InvalidArgument, format!("cwd '{cwd}' does not exist"))
        }
        SpawnError::Chdir(cause) => failed(cause, format!("chdir {cwd}: {}", cause_text(cause))),
        SpawnError::Exec(cause) if is_missing(cause) && !cmd.contains('/') => {
            failed(cause, "executable file not found in $PATH".to_owned())
        }
        SpawnError::Fork(cause) if cause.raw_os_error() == Some(libc::EAGAIN) => {
            failed(cause, format!("fork/exec {cmd}: too many processes"))
        }
        SpawnError::Exec(cause)
        | SpawnError::Fork(cause)
        | SpawnError::Session(cause)
        | SpawnError::Identity(cause) => failed(cause, format!("fork/exec {cmd}: {}", cause_text(cause))),
    }
}

fn is_missing(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// What may work later is not the request's fault.
fn start_error_code(cause: &io::Error) -> Code {
    match cause.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSPC) => Code::ResourceExhausted,
        _ => Code::InvalidArgument,
    }
}

/// The kernel's reason as Go has it: "permission denied" and not "Permission denied (os error 13)".
fn cause_text(cause: &io::Error) -> String {
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// The command with its arguments, as far as a line of a log would show it.
fn command_line(config: &ProcessConfig) -> String {
    const MAX_CHARS: usize = 200;
    let mut line = config.cmd.clone();
    for argument in &config.args {
        if line.len() > MAX_CHARS {
            break;
        }
        line = format!("{line} {argument}");
    }
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The basic variables, then the sandbox's, then the request's. Later ones override earlier ones.
fn environment(config: &ProcessConfig, settings: &Settings, user: &User) -> BTreeMap<String, String> {
    let mut env = basic_environment(user);
    env.extend(settings.env.clone());
    env.extend(config.envs.iter().map(|(key, value)| (key.clone(), value.clone())));
    env
}

fn environment_strings(env: &BTreeMap<String, String>) -> Result<Vec<CString>, RpcError> {
    if let Some(key) = env.keys().find(|key| key.is_empty() || key.contains('=')) {
        return Err(RpcError::new(Code::InvalidArgument, format!("invalid environment variable name '{key}'")));
    }
    c_strings(env.iter().map(|(key, value)| format!("{key}={value}")))
}

/// The files to try for `cmd`.
fn programs(cmd: &str, path: &str) -> Result<Vec<CString>, RpcError> {
    if cmd.is_empty() {
        return Err(RpcError::new(Code::InvalidArgument, "cmd is empty"));
    }
    if cmd.contains('/') {
        return c_strings([cmd]);
    }
    c_strings(path.split(':').map(|dir| if dir.is_empty() { format!("./{cmd}") } else { format!("{dir}/{cmd}") }))
}

fn c_strings<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Vec<CString>, RpcError> {
    texts.into_iter().map(|text| c_string(text.as_ref()).ok_or_else(nul)).collect()
}

fn nul() -> RpcError {
    RpcError::new(Code::InvalidArgument, "a NUL byte is not allowed in commands, arguments, variables and paths")
}

/// A process's standard streams, both ends.
#[derive(Debug)]
pub(super) struct Streams {
    /// Standard input, output and error of the child.
    pub(super) child: [Arc<OwnedFd>; 3],
    /// Takes what clients write.
    pub(super) input: Input,
    /// The sources of its output.
    pub(super) pipes: Vec<(Pipe, Source)>,
    pub(super) terminal: Option<TerminalName>,
}

impl Streams {
    pub(super) fn pipes(with_stdin: bool) -> io::Result<Self> {
        let (stdin, input) = if with_stdin {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            (read, Input::pipe(write)?)
        } else {
            (rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?, Input::none())
        };
        let (stdout, stdout_child) = Self::output_pipe()?;
        let (stderr, stderr_child) = Self::output_pipe()?;
        let pipes = vec![(stdout, Source::Stdout), (stderr, Source::Stderr)];
        Ok(Self { child: [Arc::new(stdin), stdout_child, stderr_child], input, pipes, terminal: None })
    }

    /// A pipe for output, and the child's end of it.
    pub(super) fn output_pipe() -> io::Result<(Pipe, Arc<OwnedFd>)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Pipe::new(read)?, Arc::new(write)))
    }

    fn terminal(pty: &PTY, user: &User) -> Result<Self, RpcError> {
        let ends = TerminalEnds::open(window_size(pty), user.uid).map_err(|error| {
            let (cols, rows) = (pty.size.cols, pty.size.rows);
            let cause = io::Error::from(error);
            let why = cause_text(&cause);
            RpcError::new(
                start_error_code(&cause),
                format!("error starting pty with '{cols}' cols and '{rows}' rows: {why}"),
            )
        })?;
        Self::of_terminal(ends).map_err(no_streams)
    }

    pub(super) fn of_terminal(ends: TerminalEnds) -> io::Result<Self> {
        let TerminalEnds { master, slave, name } = ends;
        let pipe = Pipe::new(master)?;
        let input = Input::terminal(pipe.clone());
        Ok(Self {
            child: [0, 1, 2].map(|_| Arc::clone(&slave)),
            input,
            pipes: vec![(pipe, Source::Pty)],
            terminal: Some(name),
        })
    }
}

fn no_streams(error: io::Error) -> RpcError {
    let code = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    RpcError::new(code, format!("error creating the process's streams: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_along_the_path_and_paths_are_not() {
        let found: Vec<String> = programs("ls", "/bin::/usr/bin").unwrap().iter().map(|p| sys::text(p)).collect();
        assert_eq!(found, ["/bin/ls", "./ls", "/usr/bin/ls"]);
        assert_eq!(programs("./ls", "/bin").unwrap().len(), 1);
        assert!(programs("", "/bin").is_err());
    }

    #[test]
    fn the_requests_variables_win() {
        let user = User { name: "u".into(), uid: 1, gid: 1, home: "/h".into(), shell: "/bin/sh".into() };
        let settings = Settings {
            env: BTreeMap::from([("A".into(), "sandbox".into()), ("HOME".into(), "/other".into())]),
            ..Settings::default()
        };
        let mut config = ProcessConfig::default();
        config.envs.insert("A".into(), "request".into());
        let env = environment(&config, &settings, &user);
        assert_eq!((env["A"].as_str(), env["HOME"].as_str(), env["USER"].as_str()), ("request", "/other", "u"));
    }

    #[test]
    fn odd_variable_names_are_refused() {
        for name in ["", "A=B", "A\0"] {
            assert!(environment_strings(&BTreeMap::from([(name.to_owned(), String::new())])).is_err());
        }
    }
}
