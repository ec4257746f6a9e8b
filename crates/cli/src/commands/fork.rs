//! `isopod fork`: copies of a running sandbox.

use std::process::ExitCode;

use isopod_client::{ApiError, Sandbox};
use serde_json::{Value, json};

use super::remote::{client, explain};
use crate::args::ForkArgs;
use crate::say::print_json;

pub(super) async fn run(args: ForkArgs) -> anyhow::Result<ExitCode> {
    let copies = client(&args.server)?.fork(&args.sandbox, args.count, Some(args.timeout)).await.map_err(explain)?;
    let has_failed = copies.iter().any(Result::is_err);
    if args.json {
        print_json(&copies.iter().map(shown).collect::<Vec<_>>());
    } else {
        for copy in &copies {
            match copy {
                Ok(sandbox) => say!("{}", sandbox.id()),
                Err(error) => say_error!("isopod: a copy was not created: {error}"),
            }
        }
    }
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn shown(copy: &Result<Sandbox, ApiError>) -> Value {
    match copy {
        Ok(sandbox) => json!({ "sandboxID": sandbox.id(), "templateID": sandbox.template() }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}
