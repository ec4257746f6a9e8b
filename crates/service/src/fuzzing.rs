//! Entry point for the fuzz target in `/fuzz`: the parser of command lines. Panics if the parser breaks a promise.

use crate::shell::commands_of;

/// Parses a line. Every parsed command must have a name, and quoting all its words must give the same command again.
pub fn command_line(data: &[u8]) {
    let Ok(line) = std::str::from_utf8(data) else { return };
    let Ok(commands) = commands_of(line) else { return };
    assert!(!commands.is_empty());
    for argv in commands {
        assert!(argv.first().is_some_and(|name| !name.is_empty()), "{line:?}");
        let quoted: Vec<String> = argv.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
        assert_eq!(commands_of(&quoted.join(" ")).as_deref(), Ok(&[argv][..]), "{line:?}");
    }
}
