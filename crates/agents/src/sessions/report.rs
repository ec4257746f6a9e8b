//! The texts that an agent gets about a call, in the words of the tool that it knows.

use super::tool::{ToolFailure, ToolOutput};
use super::workspace::Skipped;

pub(super) const NO_OUTPUT: &str = "Execution successful (No stdout).";
pub(crate) const NO_SANDBOX: &str = "Failed to initialize E2B Sandbox connection.";

/// A file that was saved from a rich result.
pub(super) struct Saved {
    pub(super) label: &'static str,
    pub(super) name: String,
}

/// The log of a call: its output, what was saved, and what could not be transferred.
pub(super) fn log_text(output: &ToolOutput, saved: &[Saved], skipped: &[Skipped]) -> String {
    let mut pieces = Vec::new();
    if !output.stdout.is_empty() {
        pieces.push(format!("STDOUT:\n{}", output.stdout));
    }
    if !output.stderr.is_empty() {
        pieces.push(format!("STDERR:\n{}", output.stderr));
    }
    if output.truncated {
        pieces.push("\n[SYSTEM: The output was too long; the rest was dropped]".to_owned());
    }
    for Saved { label, name } in saved {
        pieces.push(format!("\n[SYSTEM: Generated {label} saved to '{name}']"));
    }
    for Skipped { path, reason } in skipped {
        pieces.push(format!("\n[SYSTEM: File '{path}' was not transferred: {reason}]"));
    }
    pieces.join("\n")
}

/// The log of a successful call.
pub(super) fn result_text(mut log: String, files: &[String]) -> String {
    if !files.is_empty() {
        log.push_str(&format!("\n[SYSTEM: The following files were generated/updated: {}]", python_list(files)));
    }
    if log.is_empty() { NO_OUTPUT.to_owned() } else { log }
}

pub(super) fn error_text(failure: &ToolFailure) -> String {
    let mut text = format!("RUNTIME ERROR: {}: {}", failure.name, failure.value);
    if !failure.traceback.is_empty() {
        text.push('\n');
        text.push_str(&failure.traceback);
    }
    text
}

/// Formats a list of strings as Python does.
fn python_list(items: &[String]) -> String {
    let shown: Vec<String> = items.iter().map(|item| python_string(item)).collect();
    format!("[{}]", shown.join(", "))
}

fn python_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::from(quote);
    for char in text.chars() {
        match char {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            char if char == quote => {
                shown.push('\\');
                shown.push(char);
            }
            char if char.is_control() => shown.push_str(&format!("\\x{:02x}", u32::from(char))),
            char => shown.push(char),
        }
    }
    shown.push(quote);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_that_agents_know() {
        let output = ToolOutput { stdout: "a\n".into(), stderr: "b".into(), ..ToolOutput::default() };
        let saved = [Saved { label: "Image", name: "plot.png".into() }];
        let log = log_text(&output, &saved, &[]);
        assert_eq!(log, "STDOUT:\na\n\nSTDERR:\nb\n\n[SYSTEM: Generated Image saved to 'plot.png']");
        let files = ["plot.png".to_owned(), "it's".to_owned(), "both'\"".to_owned()];
        assert_eq!(
            result_text("x".into(), &files),
            "x\n[SYSTEM: The following files were generated/updated: ['plot.png', \"it's\", 'both\\'\"']]"
        );
        assert_eq!(result_text(String::new(), &[]), "Execution successful (No stdout).");
        let failure = ToolFailure { name: "ZeroDivisionError".into(), value: "x".into(), traceback: "tb".into() };
        assert_eq!(error_text(&failure), "RUNTIME ERROR: ZeroDivisionError: x\ntb");
    }

    #[test]
    fn what_was_not_moved_is_said() {
        let log = log_text(&ToolOutput::default(), &[], &[Skipped::new("big", "too large")]);
        assert!(log.contains("File 'big' was not transferred: too large"));
    }
}
