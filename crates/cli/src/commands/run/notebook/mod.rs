//! `isopod run --notebook`: the code cells of a notebook run in order, and their outputs are written into it.

mod document;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use isopod_client::interpreter::{Interpreter, RunCode};
use isopod_node::Node;
use isopod_wire::node::Incarnation;

use super::super::interpreter::interpreter_of;
use crate::args::RunArgs;
use crate::printable::printable;
use document::Notebook;

/// Runs it. The notebook is written also when a cell fails, with all that there was until then.
pub(super) async fn run(
    node: &Arc<Node>,
    incarnation: &Incarnation,
    path: &Path,
    args: &RunArgs,
    timeout: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let mut notebook = Notebook::read(path)?;
    let ended = run_cells(&interpreter_of(node, incarnation), &mut notebook, args.allow_errors, timeout).await;
    let output = args.output.as_deref().unwrap_or(path);
    notebook.write(output).with_context(|| format!("could not write {}", output.display()))?;
    ended
}

async fn run_cells(
    interpreter: &Interpreter,
    notebook: &mut Notebook,
    allow_errors: bool,
    timeout: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let language = notebook.language();
    let total = notebook.code_cells().count();
    let mut code = ExitCode::SUCCESS;
    for (number, cell) in notebook.code_cells().enumerate() {
        let source = cell.source();
        if source.trim().is_empty() {
            continue;
        }
        say_error!("cell {}/{total}", number + 1);
        let run = RunCode { timeout, ..RunCode::new(source).language(&language) };
        let could_not = || format!("cell {} could not be run", number + 1);
        let execution = interpreter.run(run).await.with_context(could_not)?;
        let executed = execution.collect().await.with_context(could_not)?;
        if let Some(error) = &executed.error {
            say_error!("cell {} failed: {}: {}", number + 1, printable(&error.name), printable(&error.value));
            code = ExitCode::FAILURE;
        }
        let has_failed = executed.error.is_some();
        cell.record(executed);
        if has_failed && !allow_errors {
            break;
        }
    }
    Ok(code)
}
