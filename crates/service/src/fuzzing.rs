//! The parser of command lines, for the fuzz target in `/fuzz`. It panics when a promise of the parser does not hold.

use crate::shell::commands_of;

/// A line is read or refused. Every command that is read has a name, and quoting all words of it gives it again.
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
