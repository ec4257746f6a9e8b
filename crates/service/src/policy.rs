//! Rules for the commands that a team's agents may run. They are off by default, because the sandbox is the security
//! boundary. With a list, a command is identified by the name of its program. A shell line is parsed into its commands
//! first, and refused if it cannot be parsed.
//!
//! A deny list is a guard rail and not a security boundary: a program that runs others (`env`, `xargs`, `python3`) can
//! run anything. An allow list names every program that the service may start.

use super::backend::{Command, CommandLine};
use super::shell::{ShellError, commands_of};

/// The rules of a team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandPolicy {
    /// If not empty, only these are allowed.
    pub allow: Vec<String>,
    /// Never these.
    pub deny: Vec<String>,
}

/// Why a command may not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyRefusal {
    #[error("{0:?} may not be run here")]
    Program(String),
    #[error("cannot check the line against the rules for commands ({0}); send it as argv, or simplify it")]
    Unreadable(String),
}

impl CommandPolicy {
    pub(crate) fn check(&self, command: &Command) -> Result<(), PolicyRefusal> {
        if self.allow.is_empty() && self.deny.is_empty() {
            return Ok(());
        }
        match &command.line {
            CommandLine::Argv { program, .. } => self.check_program(program),
            CommandLine::Shell(line) => {
                let unreadable = |error: ShellError| PolicyRefusal::Unreadable(error.to_string());
                let commands = commands_of(line).map_err(unreadable)?;
                commands.iter().try_for_each(|argv| self.check_program(&argv[0]))
            }
        }
    }

    /// A name matches the program in any directory when it is denied. When it is allowed, the program must match
    /// exactly, so that a file elsewhere with an allowed name is refused.
    fn check_program(&self, program: &str) -> Result<(), PolicyRefusal> {
        let name = program.rsplit('/').next().unwrap_or(program);
        let is_allowed = self.allow.is_empty() || self.allow.iter().any(|one| one == program);
        let is_denied = self.deny.iter().any(|one| one == program || one == name);
        if is_allowed && !is_denied { Ok(()) } else { Err(PolicyRefusal::Program(program.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    /// Rules apply to what would really run, after the line is parsed as a shell would.
    #[test]
    fn rules_apply_to_every_program_of_a_line() {
        let only = CommandPolicy { allow: list(&["git", "ls", "/usr/bin/make"]), deny: Vec::new() };
        let not = CommandPolicy { allow: Vec::new(), deny: list(&["rm"]) };
        for fine in ["git status && ls | git hash-object", "/usr/bin/make", "'git' log"] {
            assert_eq!(only.check(&Command::shell(fine)), Ok(()), "{fine}");
        }
        for bad in ["git x; rm y", "make", "/tmp/git", "git $(rm)", "echo", "if git; then ls; fi"] {
            assert!(only.check(&Command::shell(bad)).is_err(), "{bad}");
        }
        assert!(not.check(&Command::argv("/bin/rm", ["-rf"])).is_err());
        assert!(not.check(&Command::argv("ls", ["rm"])).is_ok());
        assert!(not.check(&Command::shell("ls; \"r\"m x")).is_err());
        assert!(CommandPolicy::default().check(&Command::shell("anything $(goes)")).is_ok());
    }
}
