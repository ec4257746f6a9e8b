//! Runs code or a command and keeps its output, up to a limit, even if it fails.

use std::time::Duration;

use isopod_control::lifecycle::GuestConnection;
use isopod_guest_client::GuestError;
use isopod_guest_client::guest::{Event, StartProcess, TextDecoder};
use isopod_guest_client::interpreter::{CodeEvent, RunCode};

use super::tool::{Action, ToolFailure, ToolOutput};

/// How much of each stream and of each part of an error is kept.
const MAX_OUTPUT: usize = 4 << 20;
/// The limit on memory for all results. Results that do not fit are dropped.
const MAX_RESULTS: usize = 64 << 20;

/// Runs an action to its end. The output is returned even if the sandbox failed.
pub(super) async fn run_action(
    inside: &GuestConnection,
    action: &Action,
    timeout: Duration,
) -> (ToolOutput, Option<GuestError>) {
    let mut output = ToolOutput::default();
    let ran = match action {
        Action::Code { code, language } => run_code(inside, code, language.as_deref(), timeout, &mut output).await,
        Action::Command { line } => run_command(inside, line, timeout, &mut output).await,
    };
    match ran {
        Ok(()) => (output, None),
        Err(error) if error.is_timeout() => {
            let value = format!("it ran longer than {} seconds and was stopped", timeout.as_secs_f64());
            output.error = Some(ToolFailure { name: "TimeoutError".to_owned(), value, traceback: String::new() });
            (output, None)
        }
        // The guest refuses the request, for example because the language is unknown.
        Err(GuestError::Refused { message, .. }) => {
            output.error =
                Some(ToolFailure { name: "InvalidRequest".to_owned(), value: message, traceback: String::new() });
            (output, None)
        }
        Err(error) => (output, Some(error)),
    }
}

async fn run_code(
    inside: &GuestConnection,
    code: &str,
    language: Option<&str>,
    timeout: Duration,
    output: &mut ToolOutput,
) -> Result<(), GuestError> {
    let mut wanted = RunCode::new(code).timeout(timeout);
    wanted.language = language.map(str::to_owned);
    let mut execution = inside.interpreter.run(wanted).await?;
    let mut room = MAX_RESULTS;
    while let Some(event) = execution.next().await? {
        match event {
            CodeEvent::Stdout(text) => keep(&mut output.stdout, &text, &mut output.truncated),
            CodeEvent::Stderr(text) => keep(&mut output.stderr, &text, &mut output.truncated),
            CodeEvent::Result(result) => match room.checked_sub(execution.weight()) {
                Some(left) => {
                    room = left;
                    output.results.push(*result);
                }
                None => output.truncated = true,
            },
            CodeEvent::Error(error) => {
                let mut cut = |text: String| {
                    let mut kept = String::new();
                    keep(&mut kept, &text, &mut output.truncated);
                    kept
                };
                let (name, value, traceback) = (cut(error.name), cut(error.value), cut(error.traceback));
                output.error = Some(ToolFailure { name, value, traceback });
            }
            _ => {}
        }
    }
    Ok(())
}

async fn run_command(
    inside: &GuestConnection,
    line: &str,
    timeout: Duration,
    output: &mut ToolOutput,
) -> Result<(), GuestError> {
    let mut process = inside.guest.start(StartProcess::shell(line).timeout(timeout)).await?;
    let (mut stdout, mut stderr) = (TextDecoder::default(), TextDecoder::default());
    loop {
        match process.next().await? {
            Some(Event::Stdout(bytes) | Event::Pty(bytes)) => {
                keep(&mut output.stdout, &stdout.push(&bytes), &mut output.truncated);
            }
            Some(Event::Stderr(bytes)) => keep(&mut output.stderr, &stderr.push(&bytes), &mut output.truncated),
            Some(Event::End(ended)) => {
                keep(&mut output.stdout, &stdout.finish(), &mut output.truncated);
                keep(&mut output.stderr, &stderr.finish(), &mut output.truncated);
                output.exit_code = Some(ended.exit_code);
                if ended.exit_code != 0 {
                    output.error = Some(ToolFailure {
                        name: "CommandExitException".to_owned(),
                        value: format!("Command exited with code {}", ended.exit_code),
                        traceback: String::new(),
                    });
                }
                return Ok(());
            }
            Some(_) => {}
            None => return Err(GuestError::Protocol("the process had already ended".to_owned())),
        }
    }
}

fn keep(all: &mut String, more: &str, truncated: &mut bool) {
    let room = MAX_OUTPUT.saturating_sub(all.len());
    if more.len() <= room {
        return all.push_str(more);
    }
    *truncated = true;
    let end = (0..=room).rev().find(|at| more.is_char_boundary(*at)).unwrap_or(0);
    all.push_str(&more[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_output_is_cut_between_characters_and_said_to_be() {
        let (mut all, mut truncated) = ("x".repeat(MAX_OUTPUT - 1), false);
        keep(&mut all, "é", &mut truncated);
        assert!(truncated && all.len() == MAX_OUTPUT - 1);
        keep(&mut all, "y", &mut truncated);
        assert_eq!(all.len(), MAX_OUTPUT);
    }
}
