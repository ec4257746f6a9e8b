//! `isopod runs artifacts`: the files that a run has made.

use std::path::{Component, Path};

use anyhow::{Context, bail};
use isopod_client::Client;
use serde_json::Value;

use super::super::remote::explain;
use super::super::show::print_table;
use super::field;
use crate::say::print_json_pretty;

pub(super) async fn run(client: &Client, run: &str, output: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let listed = client.run_artifacts(run).await.map_err(explain)?;
    if let Some(directory) = output {
        fetch(client, run, directory).await?;
    }
    if json {
        print_json_pretty(&listed);
        return Ok(());
    }
    let row = |file: &Value| {
        vec![field(file, "filename"), field(file, "size_bytes"), field(file, "content_type"), field(file, "agent_id")]
    };
    let rows: Vec<_> = files(&listed).iter().map(row).collect();
    print_table(&["FILE", "BYTES", "TYPE", "NODE"], &rows);
    Ok(())
}

/// Puts all files below the directory. Says how many there are.
pub(in crate::commands) async fn fetch(client: &Client, run: &str, directory: &Path) -> anyhow::Result<usize> {
    let listed = client.run_artifacts(run).await.map_err(explain)?;
    let files = files(&listed);
    for file in files {
        let name = file["filename"].as_str().unwrap_or_default();
        let place = directory.join(inside(name)?);
        let bytes = client.run_artifact(run, name).await.map_err(explain)?;
        let parent = place.parent().unwrap_or(directory);
        std::fs::create_dir_all(parent).with_context(|| format!("could not make {}", parent.display()))?;
        std::fs::write(&place, bytes).with_context(|| format!("could not write {}", place.display()))?;
    }
    Ok(files.len())
}

fn files(listed: &Value) -> &[Value] {
    let list = listed.as_array().or_else(|| listed["files"].as_array()).or_else(|| listed["artifacts"].as_array());
    list.map(Vec::as_slice).unwrap_or_default()
}

/// A server does not decide where on this machine files go.
fn inside(name: &str) -> anyhow::Result<&Path> {
    let path = Path::new(name);
    if name.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
        bail!("the server names a file that is outside the directory: {name:?}");
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_their_directory() {
        assert!(inside("a/b.txt").is_ok());
        for bad in ["", "/etc/passwd", "../x", "a/../../x"] {
            assert!(inside(bad).is_err(), "{bad:?}");
        }
    }
}
