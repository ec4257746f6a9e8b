//! `isopod info`: everything about one sandbox.

use std::process::ExitCode;

use isopod_client::sandbox::SandboxDetail;

use super::remote::{client, explain};
use super::show::{from_now, moment, printable, state};
use crate::args::InfoArgs;
use crate::say::print_json_pretty;

pub(super) async fn run(args: InfoArgs) -> anyhow::Result<ExitCode> {
    let detail = client(&args.server)?.info(&args.sandbox).await.map_err(explain)?;
    if args.json {
        print_json_pretty(&detail);
    } else {
        for (what, value) in rows(&detail) {
            say!("{what:<12} {}", printable(&value));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(detail: &SandboxDetail) -> Vec<(&'static str, String)> {
    let info = &detail.info;
    let mut rows = vec![
        ("id", info.id.to_string()),
        ("template", info.template_id.clone()),
        ("state", state(info.state).to_owned()),
        ("started", moment(info.started_at)),
        ("ends", format!("{} (in {})", moment(info.end_at), from_now(info.end_at))),
        ("cpus", info.cpu_count.to_string()),
        ("memory", format!("{} MiB", info.memory_mb)),
    ];
    if info.disk_size_mb > 0 {
        rows.push(("disk", format!("{} MiB", info.disk_size_mb)));
    }
    if let Some(lifecycle) = &detail.lifecycle {
        rows.push(("on timeout", lifecycle.on_timeout.clone()));
        rows.push(("resumes", if lifecycle.auto_resume { "by traffic" } else { "when connected to" }.to_owned()));
    }
    if let Some(mode) = &detail.pause_mode {
        rows.push(("pause", mode.clone()));
    }
    if let Some(allowed) = detail.allow_internet_access {
        rows.push(("internet", if allowed { "yes" } else { "no" }.to_owned()));
    }
    if let Some(network) = &detail.network {
        rows.push(("network", network.to_string()));
    }
    if let Some(domain) = &detail.domain {
        rows.push(("ports", format!("{{port}}-{}.{domain}", info.id)));
    }
    rows.extend(info.metadata.iter().map(|(key, value)| ("metadata", format!("{key}={value}"))));
    rows
}
