//! `isopod template show`: one template and its builds.

use std::process::ExitCode;

use isopod_client::sandbox::TemplateBuild;

use super::super::remote::client;
use super::super::show::{moment, print_table, printable};
use super::advise;
use crate::args::TemplateShowArgs;
use crate::say::print_json_pretty;

pub(super) async fn run(args: TemplateShowArgs) -> anyhow::Result<ExitCode> {
    let template = client(&args.server)?.template(&args.template).await.map_err(advise)?;
    if args.json {
        print_json_pretty(&template);
        return Ok(ExitCode::SUCCESS);
    }
    say!("Template ID: {}", printable(&template.id));
    say!("Names: {}", printable(&template.names.join(", ")));
    say!("Access: {}", if template.public { "public" } else { "private" });
    if template.cpu_count > 0 {
        say!("CPUs: {}, memory: {} MiB", template.cpu_count, template.memory_mb);
    }
    say!("Sandboxes made: {}", template.spawn_count);
    if !template.builds.is_empty() {
        print_table(
            &["BUILD", "STATUS", "TAGS", "CREATED", "REASON"],
            &template.builds.iter().map(row).collect::<Vec<_>>(),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn row(build: &TemplateBuild) -> Vec<String> {
    vec![
        printable(&build.id),
        printable(&build.status),
        printable(&build.tags.join(", ")),
        moment(build.created_at),
        printable(build.reason.as_deref().unwrap_or("-")),
    ]
}
