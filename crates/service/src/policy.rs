//! Which commands a team's agents may run. Off by default: the sandbox is the fence. With a list, a command counts
//! by the name of its program; a line for a shell is read into its commands first, and one that cannot be read is refused.
//!
//! A list of refusals is a guard rail, not a fence: a program that runs others (`env`, `xargs`, `python3`) runs what it
//! likes. A list of allowances names every program that may be started by the service.

use super::backend::{Command, CommandLine};
use super::shell::{ShellError, commands_of};

/// The rule of a team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandPolicy {
    /// Only these, where there are any.
    pub allow: Vec<String>,
    /// Never these.
    pub deny: Vec<String>,
}

/// Why a command may not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyRefusal {
    #[error("{0:?} may not be run here")]
    Program(String),
    #[error("the line cannot be checked against the rules for commands ({0}); send it as argv or more plainly")]
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

    /// A name stands for the program wherever it is; a path only for that path, so that a file somebody put elsewhere
    /// under a good name does not pass.
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

    /// Rules apply to what would really run, after the line was read as a shell reads it.
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
