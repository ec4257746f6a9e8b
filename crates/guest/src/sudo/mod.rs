//! The sandbox's sudo: set-uid root and without passwords, because the security boundary is the sandbox, not its users.
//!
//! Root, the user with id 1000 and members of the group `sudo` may use it. It matches the real sudo in what scripts depend
//! on: options, environment, messages and exit codes.

mod args;
mod environment;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::Access;
use rustix::process::{Gid, Uid, getgid, getuid};

use crate::stderr::print_line;
use crate::sudo::args::{Action, Login, Request};
use crate::users::{Group, User};

const SUDO_GROUP: &str = "sudo";
const SANDBOX_USER: u32 = 1000;
const VERSION: &str = "Sudo version 1.9.15 (isopod)";
const USAGE: &str = "usage: sudo [-EHiknSsv] [-g group] [-u user] [VAR=value] [command [arg ...]]";

/// Why nothing was run. The text follows `sudo: `.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum SudoError {
    #[error("{0} is not in the sudoers file")]
    NotAllowed(String),
    #[error("unknown user {0}")]
    UnknownUser(String),
    #[error("unknown group {0}")]
    UnknownGroup(String),
    #[error("{0}: command not found")]
    NotFound(String),
    #[error("{0}: command is a directory or not executable")]
    NotExecutable(String),
    #[error("must be owned by uid 0 and have the setuid bit set")]
    NotSetuid,
    #[error("unable to change to the new identity: {0}")]
    Identity(String),
    #[error("unable to execute {0}: {1}")]
    Exec(String, String),
}

/// Replaces this process with the command, or prints why it cannot.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let request = match args::parse(args) {
        Ok(request) => request,
        Err(error) => {
            print_line(&format!("sudo: {error}\n{USAGE}"));
            return ExitCode::FAILURE;
        }
    };
    let done = match request.action {
        Action::Help => return print(USAGE),
        Action::Version => return print(VERSION),
        Action::ResetTimestamp => return ExitCode::SUCCESS,
        Action::Validate => check_caller().map(|_| ExitCode::SUCCESS),
        Action::List => check_caller().map(|user| print(&listing(&user))),
        Action::Run => execute(request),
    };
    done.unwrap_or_else(|error| {
        print_line(&format!("sudo: {error}"));
        ExitCode::FAILURE
    })
}

fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn listing(user: &User) -> String {
    format!("User {} may run the following commands in this sandbox:\n    (ALL : ALL) NOPASSWD: ALL", user.name)
}

/// The caller, if they may use sudo.
fn check_caller() -> Result<User, SudoError> {
    let uid = getuid().as_raw();
    let caller = User::by_uid(uid).unwrap_or_else(|| unnamed_user(uid, getgid().as_raw()));
    let in_group = || Group::by_name(SUDO_GROUP).is_some_and(|group| caller.groups().contains(&group.gid));
    if uid == 0 || uid == SANDBOX_USER || in_group() { Ok(caller) } else { Err(SudoError::NotAllowed(caller.name)) }
}

/// A user that is not in `/etc/passwd`.
fn unnamed_user(uid: u32, gid: u32) -> User {
    User { name: uid.to_string(), uid, gid, home: "/".to_owned(), shell: "/bin/sh".to_owned() }
}

fn execute(request: Request) -> Result<ExitCode, SudoError> {
    let caller = check_caller()?;
    let target = find_user(&request)?;
    let group = request.group.as_deref().map(find_group).transpose()?;
    let line = command_line(&request, &target);
    let env = environment::build(&request, &caller, &target, &line);
    become_user(&target, group)?;
    if request.login == Some(Login::Initial) {
        // As in the real sudo, a missing home is only a warning.
        if std::env::set_current_dir(&target.home).is_err() {
            print_line(&format!("sudo: unable to change directory to {}", target.home));
        }
    }
    let name = line[0].to_string_lossy().into_owned();
    let program = find_program(&line[0], environment::SECURE_PATH)?;
    let mut command = Command::new(&program);
    command.args(&line[1..]).env_clear().envs(env);
    if request.login == Some(Login::Initial) {
        let shell = Path::new(&target.shell).file_name().unwrap_or_default();
        command.arg0(format!("-{}", shell.to_string_lossy()));
    } else {
        command.arg0(&line[0]);
    }
    Err(SudoError::Exec(name, command.exec().to_string()))
}

fn find_user(request: &Request) -> Result<User, SudoError> {
    let Some(wanted) = &request.user else {
        // With only a group given, the user is still the caller.
        let uid = if request.group.is_some() { getuid().as_raw() } else { 0 };
        return Ok(User::by_uid(uid).unwrap_or_else(|| unnamed_user(uid, 0)));
    };
    let unknown = || SudoError::UnknownUser(wanted.clone());
    match wanted.strip_prefix('#') {
        Some(number) => {
            let uid: u32 = number.parse().ok().filter(|uid| *uid != u32::MAX).ok_or_else(unknown)?;
            Ok(User::by_uid(uid).unwrap_or_else(|| unnamed_user(uid, uid)))
        }
        None => User::by_name(wanted).ok_or_else(unknown),
    }
}

fn find_group(wanted: &str) -> Result<u32, SudoError> {
    let unknown = || SudoError::UnknownGroup(wanted.to_owned());
    match wanted.strip_prefix('#') {
        Some(number) => number.parse().ok().filter(|gid| *gid != u32::MAX).ok_or_else(unknown),
        None => Group::by_name(wanted).map(|group| group.gid).ok_or_else(unknown),
    }
}

/// The command to run, or the user's shell with the command as its script.
fn command_line(request: &Request, target: &User) -> Vec<OsString> {
    let shell = match request.login {
        None => return request.command.clone(),
        Some(Login::Initial) => OsString::from(&target.shell),
        Some(Login::Shell) => std::env::var_os("SHELL").unwrap_or_else(|| OsString::from(&target.shell)),
    };
    if request.command.is_empty() {
        return vec![shell];
    }
    vec![shell, "-c".into(), args::quote_for_shell(&request.command)]
}

/// Sets the groups first and the user last: a user other than root cannot change anything more.
fn become_user(target: &User, group: Option<u32>) -> Result<(), SudoError> {
    if !rustix::process::geteuid().is_root() {
        return Err(SudoError::NotSetuid);
    }
    let failed = |error: rustix::io::Errno| SudoError::Identity(error.to_string());
    let gid = Gid::from_raw(group.unwrap_or(target.gid));
    let mut groups: Vec<Gid> = target.groups().into_iter().map(Gid::from_raw).collect();
    if !groups.contains(&gid) {
        groups.insert(0, gid);
    }
    rustix::thread::set_thread_groups(&groups).map_err(failed)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    let uid = Uid::from_raw(target.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed)
}

/// Finds the program along the secure path, with the rights of the target user.
fn find_program(name: &OsString, path: &str) -> Result<PathBuf, SudoError> {
    let text = name.to_string_lossy().into_owned();
    if text.contains('/') {
        let program = PathBuf::from(name);
        return match program.metadata() {
            Err(_) => Err(SudoError::NotFound(text)),
            Ok(meta) if meta.is_file() && is_executable(&program) => Ok(program),
            Ok(_) => Err(SudoError::NotExecutable(text)),
        };
    }
    let candidates = path.split(':').map(|dir| Path::new(dir).join(name));
    let mut found = candidates.filter(|path| path.is_file() && is_executable(path));
    found.next().ok_or(SudoError::NotFound(text))
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, Access::EXEC_OK).is_ok()
}
