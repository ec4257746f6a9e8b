//! What CRIU's log says about a failure.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The longest reason that is shown.
const MAX_SHOWN: usize = 300;
/// How much of the log is read.
const MAX_LOG: u64 = 4 << 20;

/// The first error of the log, with the process that it was about.
pub(crate) fn reason_in(log: &Path) -> String {
    let mut text = Vec::new();
    // If it cannot be read, it has no reason.
    let _ = File::open(log).and_then(|log| log.take(MAX_LOG).read_to_end(&mut text));
    reason(&String::from_utf8_lossy(&text))
}

/// A text that a sandbox has chosen in part, without anything that a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    let is_direction =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().filter(|c| !c.is_control() && !is_direction(*c)).take(MAX_SHOWN).collect()
}

fn reason(log: &str) -> String {
    let mut process = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Dumping task (pid: ") {
            process =
                rest.split_once(" comm: ").map(|(pid, name)| (pid.to_owned(), name.trim_end_matches(')').to_owned()));
        }
        let Some((_, rest)) = line.split_once("Error (") else { continue };
        let Some((_, message)) = rest.split_once("): ") else { continue };
        // Root without CAP_SYS_RESOURCE cannot raise the limit, and does not need to. And a sandbox has no tun device.
        if message.contains("RLIMIT_NOFILE") || message.contains("Unable to create tun") {
            continue;
        }
        return shown(&match process {
            Some((pid, name)) => format!("process {pid} ({name}): {}", message.trim()),
            None => message.trim().to_owned(),
        });
    }
    "it left no reason in its log".to_owned()
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn the_first_error_that_matters_is_shown_with_its_process() {
        let log = "(00.001) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n\
            (00.001) Error (criu/tun.c:85): tun: Unable to create tun: No such file or directory\n\
            (00.002) Dumping task (pid: 7 comm: python3)\n\
            (00.003) Error (criu/files-ext.c:98): Can't dump file 5 of that type [20600]\n\
            (00.004) Error (criu/cr-dump.c:1584): Dump files (pid: 7) failed with -1\n";
        assert_eq!(reason(log), "process 7 (python3): Can't dump file 5 of that type [20600]");
        assert_eq!(reason("(00.1) Error (a.c:1): x\x1b[31m\u{202e}y"), "x[31my");
        assert_eq!(reason(""), "it left no reason in its log");
    }
}
