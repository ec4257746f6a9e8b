//! Starts the driver's Python processes: as the sandbox's root, in a session of their own, with only the descriptors they
//! need.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::Interpreter;
use super::start::StartError;
use crate::environment::basic_environment;
use crate::settings::Settings;
use crate::sys::{self, SpawnError, SpawnPlan, c_string};
use crate::users::User;

/// The driver's main file in its directory.
const ENTRY: &str = "run.py";

/// How to start a driver process.
#[derive(Debug)]
pub(super) struct Start<'a> {
    /// The mode and its arguments.
    pub(super) arguments: &'a [&'a str],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) cwd: &'a str,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    /// Descriptor 3.
    pub(super) extra: Option<BorrowedFd<'a>>,
}

/// Starts the process. The guest reaps it like all others.
pub(super) fn spawn(interpreter: &Interpreter, start: &Start<'_>) -> Result<Pid, StartError> {
    let (programs, user) = (&interpreter.programs, user());
    let entry = programs.driver.join(ENTRY);
    if !programs.python.exists() {
        return Err(StartError::NoPython(programs.python.clone()));
    }
    if !entry.exists() {
        return Err(StartError::NoDriver(entry));
    }
    let null = null()?;
    let mut argv = vec![path(&programs.python)?, c"-s".to_owned(), path(&entry)?];
    for argument in start.arguments {
        argv.push(text(argument)?);
    }
    let env: Result<Vec<CString>, _> = start.env.iter().map(|(name, value)| text(&format!("{name}={value}"))).collect();
    let plan = SpawnPlan {
        programs: vec![path(&programs.python)?],
        argv,
        env: env?,
        cwd: text(start.cwd)?,
        uid: user.uid,
        gid: user.gid,
        groups: user.groups(),
        stdio: [std::os::fd::AsFd::as_fd(&null), start.stdout, start.stderr],
        extra: start.extra,
        terminal: false,
    };
    sys::spawn(&plan).map_err(|error| match error {
        SpawnError::Chdir(source) => StartError::Cwd { cwd: start.cwd.to_owned(), source },
        SpawnError::Fork(source)
        | SpawnError::Session(source)
        | SpawnError::Identity(source)
        | SpawnError::Exec(source) => StartError::Spawn { program: programs.python.clone(), source },
    })
}

/// The user that code runs as: root, as in E2B.
pub(super) fn user() -> User {
    let unnamed = || User { name: "root".into(), uid: 0, gid: 0, home: "/root".into(), shell: "/bin/sh".into() };
    User::by_uid(0).unwrap_or_else(unnamed)
}

/// What root finds in its environment, and where Python and Jupyter look for packages and kernels that the sandbox's user
/// has installed: code imports what a command has installed.
pub(super) fn environment(interpreter: &Interpreter) -> BTreeMap<String, String> {
    let mut env = basic_environment(&user());
    if let Ok(default_user) = default_user(interpreter) {
        env.insert("PYTHONUSERBASE".to_owned(), format!("{}/.local", default_user.home));
        env.insert("JUPYTER_PATH".to_owned(), format!("{}/.local/share/jupyter", default_user.home));
    }
    env
}

/// The sandbox's user, in whose home code starts.
pub(super) fn default_user(interpreter: &Interpreter) -> Result<User, StartError> {
    let name = interpreter.settings.get().map_or_else(|| Settings::default().default_user, |s| s.default_user.clone());
    User::by_name(&name).ok_or(StartError::NoUser(name))
}

pub(super) fn null() -> Result<OwnedFd, StartError> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| StartError::Connection(error.into()))
}

fn path(path: &Path) -> Result<CString, StartError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| StartError::Nul)
}

fn text(text: &str) -> Result<CString, StartError> {
    c_string(text).ok_or(StartError::Nul)
}
