//! The templates that come with Isopod, on this machine: which there are, and building one ahead of time.

use std::path::Path;
use std::process::ExitCode;

use isopod_node::{BuildTemplateError, Node, StateRoot, layer_names, list_recipes};
use serde_json::json;

use super::super::node_config;
use crate::failure::Hint;
use crate::progress_bar::Bar;
use crate::say::{print_json, print_json_pretty};

pub(super) fn ls(state_dir: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let state = StateRoot::open(state_dir)?;
    let layers = layer_names(&state.templates())?;
    let is_built = |name: &str| layers.iter().any(|layer| belongs_to(layer, name));
    let base = ("base", &[][..], "what this machine has", true);
    let made = list_recipes().map(|made| (made.name, made.aliases, made.summary, is_built(made.name)));
    let rows = std::iter::once(base).chain(made);
    if as_json {
        let row = |(name, aliases, summary, built): (&str, &[&str], &str, bool)| json!({ "name": name, "aliases": aliases, "summary": summary, "built": built });
        print_json_pretty(&rows.map(row).collect::<Vec<_>>());
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:<22} {:<26} {:<6} SUMMARY", "NAME", "ALIASES", "BUILT");
    for (name, aliases, summary, built) in rows {
        say!("{name:<22} {:<26} {:<6} {summary}", aliases.join(", "), if built { "yes" } else { "no" });
    }
    Ok(ExitCode::SUCCESS)
}

/// A layer is called after its template, with sixteen digits behind.
fn belongs_to(layer: &str, template: &str) -> bool {
    let digits = layer.strip_prefix(template).and_then(|rest| rest.strip_prefix('-'));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

pub(super) async fn build(state_dir: &Path, name: &str, rebuild: bool, as_json: bool) -> anyhow::Result<ExitCode> {
    let state = StateRoot::open(state_dir)?;
    let node = Node::open(state, node_config::for_command(state_dir)?).await?;
    let bar = Bar::default();
    let built = bar.while_working(node.build_template(name, rebuild, |step| bar.show(&step))).await;
    drop(bar);
    node.close().await;
    let built = built.map_err(explain)?;
    if as_json {
        print_json(&json!({ "name": built.name, "layer": built.layer, "built": built.is_new }));
    } else if built.is_new {
        say!("{} is built", built.name);
    } else {
        say!("{} is there already; --rebuild builds it anew", built.name);
    }
    Ok(ExitCode::SUCCESS)
}

pub(in crate::commands) fn explain(error: BuildTemplateError) -> anyhow::Error {
    match error {
        BuildTemplateError::Unknown(name) => {
            Hint::new(format!("there is no template {name:?}"), "isopod template ls lists those that there are")
        }
        BuildTemplateError::Failed { .. } => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_told_by_their_name() {
        assert!(belongs_to("nodejs-0123456789abcdef", "nodejs"));
        assert!(!belongs_to("nodejs-more-0123456789abcdef", "nodejs"));
        assert!(!belongs_to("nodejs", "nodejs"));
    }
}
