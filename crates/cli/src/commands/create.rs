//! `isopod create`: a sandbox with a shell in it, or one that is left running.

use std::process::ExitCode;

use isopod_client::{Client, NewSandbox, Sandbox};
use serde_json::json;

use super::connect::{require_terminal, shell};
use super::environment::environment;
use super::remote::{client, explain};
use crate::args::CreateArgs;
use crate::say::print_json;

pub(super) async fn run(args: CreateArgs) -> anyhow::Result<ExitCode> {
    if !args.detach {
        require_terminal("isopod create --detach makes a sandbox and prints its id")?;
    }
    let client = client(&args.server)?;
    let sandbox = client.create(new_sandbox(&args)?).await.map_err(explain)?;
    if !args.detach {
        return stay(client, &sandbox).await;
    }
    match args.json {
        true => print_json(&json!({ "sandboxID": sandbox.id(), "templateID": sandbox.template() })),
        false => say!("{}", sandbox.id()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The sandbox was made for the shell and goes with it.
async fn stay(client: Client, sandbox: &Sandbox) -> anyhow::Result<ExitCode> {
    say_error!("isopod: sandbox {} ends with this shell", sandbox.id());
    let ended = shell(client, sandbox, None).await;
    sandbox.kill().await.map_err(explain)?;
    ended
}

fn new_sandbox(args: &CreateArgs) -> anyhow::Result<NewSandbox> {
    Ok(NewSandbox {
        timeout: Some(args.timeout),
        auto_pause: args.auto_pause,
        files_only: args.filesystem_only,
        allow_internet_access: args.no_network.then_some(false),
        metadata: args.metadata.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect(),
        envs: environment(&args.env)?,
        ..NewSandbox::new(&args.template)
    })
}
