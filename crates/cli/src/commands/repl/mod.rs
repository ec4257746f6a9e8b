//! `isopod repl`: code that is typed runs in a sandbox, and what it gives is shown.

mod input;
mod show;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use isopod_client::guest::GuestError;
use isopod_client::interpreter::{Interpreter, RunCode};
use isopod_node::{Node, StateRoot};
use isopod_wire::node::NodeApi;
use isopod_wire::{Limits, NetworkPolicy};

use super::interpreter::interpreter_of;
use super::run::{Volume, ensure_template, explain, guest_of, new_spec};
use super::{environment::environment, node_config};
use crate::args::ReplArgs;
use input::{Input, Typed};
use show::Pictures;

pub(super) async fn run(state_dir: &Path, args: ReplArgs) -> anyhow::Result<ExitCode> {
    let volumes = args.volumes.iter().map(|text| text.parse()).collect::<anyhow::Result<Vec<Volume>>>()?;
    let node = Arc::new(Node::open(StateRoot::open(state_dir)?, node_config::for_command(state_dir)?).await?);
    let result = run_in(&node, &args, &volumes).await;
    if let Some(node) = Arc::into_inner(node) {
        node.close().await;
    }
    result
}

async fn run_in(node: &Arc<Node>, args: &ReplArgs, volumes: &[Volume]) -> anyhow::Result<ExitCode> {
    let mut spec = new_spec(&args.template)?;
    spec.limits = Limits { memory: args.memory, ..spec.limits };
    spec.network = NetworkPolicy { deny_internet: args.no_network, ..NetworkPolicy::default() };
    spec.env = environment(&args.env)?;
    spec.limits.check()?;
    ensure_template(node, &args.template).await?;
    let incarnation = node.create(spec).await.map_err(explain)?;
    let guest = guest_of(node, &incarnation)?;
    for volume in volumes {
        volume.copy_in(&guest).await?;
    }
    let code = converse(&interpreter_of(node, &incarnation), &args.language).await?;
    for volume in volumes.iter().filter(|volume| !volume.read_only) {
        volume.copy_out(&guest).await?;
    }
    Ok(code)
}

/// Reads and runs until there is nothing more to read.
async fn converse(interpreter: &Interpreter, language: &str) -> anyhow::Result<ExitCode> {
    let mut input = Input::open(language)?;
    let mut pictures = Pictures::default();
    let mut failed = false;
    loop {
        let (typed, back) = tokio::task::spawn_blocking(move || (input.read(), input)).await?;
        input = back;
        match typed? {
            Typed::Nothing => {}
            Typed::End => break,
            Typed::Code(code) => failed = !run_one(interpreter, language, code, &mut pictures).await?,
        }
    }
    // A person has seen what failed; a script that was piped in has not.
    Ok(if failed && !input.is_person() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whether the code went well. Ctrl-C ends the code and not the conversation.
async fn run_one(
    interpreter: &Interpreter,
    language: &str,
    code: String,
    pictures: &mut Pictures,
) -> anyhow::Result<bool> {
    let run = RunCode { timeout: None, ..RunCode::new(code).language(language) };
    let mut execution = match interpreter.run(run).await {
        Ok(execution) => execution,
        // The language is not there, say. The next line may be about another.
        Err(GuestError::Refused { message, .. }) => anyhow::bail!(message),
        Err(error) => return Err(error.into()),
    };
    let mut is_well = true;
    loop {
        tokio::select! {
            event = execution.next() => match event? {
                Some(event) => is_well &= show::show(event, pictures)?,
                None => return Ok(is_well),
            },
            _ = tokio::signal::ctrl_c() => {
                say_error!("interrupted");
                return Ok(false);
            }
        }
    }
}
