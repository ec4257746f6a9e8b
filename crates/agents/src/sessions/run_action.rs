//! Runs code or a command and keeps its output, up to a limit, even if it fails.

use std::time::Duration;

use isopod_control::lifecycle::GuestConnection;
use isopod_guest_client::guest::{Event, StartProcess, TextDecoder};
use isopod_guest_client::interpreter::{CodeError, CodeEvent, CodeResult, RunCode};
use isopod_guest_client::{GuestError, Reservation};

use super::output_sink::{OutputKind, OutputSink};
use super::tool::{Action, ToolFailure, ToolOutput};

/// How much of each stream and of each part of an error is kept.
const MAX_OUTPUT: usize = 4 << 20;
/// The limit on memory for all results. Results that do not fit are dropped.
const MAX_RESULTS: usize = 64 << 20;

/// The output of an action: it is kept, and passed on to whoever watches.
struct Collector<'a> {
    output: ToolOutput,
    sink: &'a mut dyn OutputSink,
    memory: &'a mut Reservation,
}

/// Runs an action to its end. The output is returned even if the sandbox failed.
pub(super) async fn run_action(
    inside: &GuestConnection,
    action: &Action,
    timeout: Duration,
    sink: &mut dyn OutputSink,
    memory: &mut Reservation,
) -> (ToolOutput, Option<GuestError>) {
    let mut collector = Collector { output: ToolOutput::default(), sink, memory };
    let ran = match action {
        Action::Code { code, language } => run_code(inside, code, language.as_deref(), timeout, &mut collector).await,
        Action::Command { line } => run_command(inside, line, timeout, &mut collector).await,
    };
    let mut output = collector.output;
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

impl Collector<'_> {
    fn stdout(&mut self, text: &str) {
        self.sink.write(OutputKind::Stdout, text);
        keep(&mut self.output.stdout, text, &mut self.output.truncated, self.memory);
    }

    fn stderr(&mut self, text: &str) {
        self.sink.write(OutputKind::Stderr, text);
        keep(&mut self.output.stderr, text, &mut self.output.truncated, self.memory);
    }

    /// Formats other than text are files of the result.
    fn result(&mut self, result: CodeResult) {
        if let Some(text) = &result.text {
            self.sink.write(OutputKind::Result, text);
        }
        self.output.results.push(result);
    }

    fn error(&mut self, error: CodeError) {
        let mut cut = |text: String| {
            let mut kept = String::new();
            keep(&mut kept, &text, &mut self.output.truncated, self.memory);
            kept
        };
        let (name, value, traceback) = (cut(error.name), cut(error.value), cut(error.traceback));
        self.output.error = Some(ToolFailure { name, value, traceback });
    }
}

async fn run_code(
    inside: &GuestConnection,
    code: &str,
    language: Option<&str>,
    timeout: Duration,
    collector: &mut Collector<'_>,
) -> Result<(), GuestError> {
    let mut wanted = RunCode::new(code).timeout(timeout);
    wanted.language = language.map(str::to_owned);
    let mut execution = inside.interpreter.run(wanted).await?;
    let mut room = MAX_RESULTS;
    while let Some(event) = execution.next().await? {
        match event {
            CodeEvent::Stdout(text) => collector.stdout(&text),
            CodeEvent::Stderr(text) => collector.stderr(&text),
            CodeEvent::Result(result) => match room.checked_sub(execution.weight()) {
                Some(left) if collector.memory.grow(execution.weight()) => {
                    room = left;
                    collector.result(*result);
                }
                _ => collector.output.truncated = true,
            },
            CodeEvent::Error(error) => collector.error(error),
            _ => {}
        }
    }
    collector.output.truncated |= execution.dropped();
    Ok(())
}

async fn run_command(
    inside: &GuestConnection,
    line: &str,
    timeout: Duration,
    collector: &mut Collector<'_>,
) -> Result<(), GuestError> {
    let mut process = inside.guest.start(StartProcess::shell(line).timeout(timeout)).await?;
    let (mut stdout, mut stderr) = (TextDecoder::default(), TextDecoder::default());
    loop {
        match process.next().await? {
            Some(Event::Stdout(bytes) | Event::Pty(bytes)) => collector.stdout(&stdout.push(&bytes)),
            Some(Event::Stderr(bytes)) => collector.stderr(&stderr.push(&bytes)),
            Some(Event::End(ended)) => {
                collector.stdout(&stdout.finish());
                collector.stderr(&stderr.finish());
                collector.output.exit_code = Some(ended.exit_code);
                if ended.exit_code != 0 {
                    collector.output.error = Some(ToolFailure {
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

fn keep(all: &mut String, more: &str, truncated: &mut bool, memory: &mut Reservation) {
    let room = MAX_OUTPUT.saturating_sub(all.len()).min(more.len());
    let room = if memory.grow(room) { room } else { 0 };
    *truncated |= room < more.len();
    let end = (0..=room).rev().find(|at| more.is_char_boundary(*at)).unwrap_or(0);
    all.push_str(&more[..end]);
}

#[cfg(test)]
mod tests {
    use isopod_guest_client::MemoryBudget;

    use super::*;

    #[test]
    fn endless_output_is_cut_between_characters_and_said_to_be() {
        let mut memory = MemoryBudget::unlimited().reserve();
        let (mut all, mut truncated) = ("x".repeat(MAX_OUTPUT - 1), false);
        keep(&mut all, "é", &mut truncated, &mut memory);
        assert!(truncated && all.len() == MAX_OUTPUT - 1);
        keep(&mut all, "y", &mut truncated, &mut memory);
        assert_eq!(all.len(), MAX_OUTPUT);
    }

    #[test]
    fn output_for_which_the_team_has_no_memory_left_is_dropped_and_said_to_be() {
        let budget = MemoryBudget::new(1 << 20);
        let mut others = budget.reserve();
        assert!(others.grow(5 << 18));
        let (mut all, mut truncated, mut memory) = (String::new(), false, budget.reserve());
        keep(&mut all, "small", &mut truncated, &mut memory);
        assert!(all == "small" && !truncated);
        keep(&mut all, &"x".repeat(1 << 20), &mut truncated, &mut memory);
        assert!(all == "small" && truncated);
    }
}
