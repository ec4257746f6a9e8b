//! `isopod template ls`: the team's templates and those that come with the server.

use std::process::ExitCode;

use isopod_client::sandbox::TemplateInfo;

use super::super::remote::client;
use super::super::show::{mebibytes, moment, print_table, printable};
use super::advise;
use crate::args::TemplateListArgs;
use crate::say::print_json_pretty;

/// Without a key there is only this machine to look at.
pub(super) fn has_key(args: &TemplateListArgs) -> bool {
    args.server.api_key.as_ref().is_some_and(|key| !key.is_empty())
}

pub(super) async fn run(args: TemplateListArgs) -> anyhow::Result<ExitCode> {
    let templates = client(&args.server)?.templates().await.map_err(advise)?;
    if args.json {
        print_json_pretty(&templates);
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["ID", "NAMES", "STATUS", "CPUS", "MEMORY", "BUILDS", "SANDBOXES", "UPDATED", "ACCESS"];
    print_table(&headings, &templates.iter().map(row).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

fn row(template: &TemplateInfo) -> Vec<String> {
    vec![
        printable(&template.id),
        printable(&template.names.join(", ")),
        printable(&template.build_status),
        template.cpu_count.to_string(),
        mebibytes(template.memory_mb << 20),
        template.build_count.to_string(),
        template.spawn_count.to_string(),
        moment(template.updated_at),
        if template.public { "public" } else { "private" }.to_owned(),
    ]
}
