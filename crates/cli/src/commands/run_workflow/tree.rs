//! A run as a tree on the terminal: one line per node, indented by how many come before it, moving while it runs.

use std::collections::HashMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use isopod_client::sandbox::RunEvent;
use serde_json::Value;

use super::Watcher;
use crate::commands::runs::field;
use crate::commands::show::printable;

const TICK: Duration = Duration::from_millis(100);
/// More lines than this do not fit on a screen; the others are counted.
const MOST_LINES: usize = 40;

#[derive(Default)]
pub(super) struct Tree {
    lines: MultiProgress,
    nodes: HashMap<String, ProgressBar>,
    /// How deep each node is.
    depths: HashMap<String, usize>,
    hidden: usize,
}

impl Watcher for Tree {
    fn begin(&mut self, run: &str, state: &Value) {
        self.note(&format!("run {run}"));
        for node in state["nodes"].as_array().into_iter().flatten() {
            let parents = node["depends_on"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let depth = parents.filter_map(|id| self.depths.get(id)).map(|depth| depth + 1).max().unwrap_or(0);
            self.add(node["id"].as_str().unwrap_or_default(), depth);
        }
        if self.hidden > 0 {
            self.note(&format!("and {} more nodes", self.hidden));
        }
    }

    fn event(&mut self, event: &RunEvent) {
        let Some(id) = event.agent_id.as_deref() else { return };
        if event.event_type == "NodeCreated" && !self.depths.contains_key(id) {
            let by = event.payload["by"].as_str().and_then(|by| self.depths.get(by));
            self.add(id, by.map_or(0, |depth| depth + 1));
        }
        let text = |name: &str| printable(&event.payload[name].as_str().unwrap_or_default().replace('\n', " "));
        match event.event_type.as_str() {
            "AgentStarted" => self.moving(id),
            "AgentCompleted" => self.still(id, "✓", &first_line(&event.payload["output"])),
            "AgentFailed" if event.payload["will_retry"] == true => self.still(id, "↻", &text("error")),
            "AgentFailed" => self.still(id, "✗", &text("error")),
            "SystemIntervention" => self.still(id, "⏸", &text("reason")),
            _ => {}
        }
    }

    fn end(&mut self, state: &Value) {
        for bar in self.nodes.values().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
        let error = if state["error"].is_null() { String::new() } else { format!(": {}", field(state, "error")) };
        self.note(&format!("{}{error}", field(state, "status")));
    }
}

impl Tree {
    fn note(&self, words: &str) {
        // A terminal that is gone needs no words.
        let _ = self.lines.println(words);
    }

    fn add(&mut self, id: &str, depth: usize) {
        self.depths.insert(id.to_owned(), depth);
        if self.nodes.len() >= MOST_LINES {
            self.hidden += 1;
            return;
        }
        let bar = self.lines.add(ProgressBar::new_spinner());
        bar.set_style(style("{prefix}· {msg}"));
        bar.set_prefix("  ".repeat(depth.min(20)));
        bar.set_message(printable(id));
        bar.tick();
        self.nodes.insert(id.to_owned(), bar);
    }

    fn moving(&self, id: &str) {
        let Some(bar) = self.nodes.get(id) else { return };
        bar.set_style(style("{prefix}{spinner} {msg} {elapsed}"));
        bar.set_message(printable(id));
        bar.reset();
        bar.enable_steady_tick(TICK);
    }

    fn still(&self, id: &str, mark: &str, words: &str) {
        let Some(bar) = self.nodes.get(id) else { return };
        bar.disable_steady_tick();
        bar.set_style(style("{prefix}{msg}"));
        let words: String = words.chars().take(100).collect();
        bar.set_message(format!("{mark} {}  {words}", printable(id)));
        bar.tick();
    }
}

/// Our own templates are right; a plain spinner is what is left should one be not.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn first_line(output: &Value) -> String {
    let text = output["result"].as_str().or_else(|| output.as_str()).map_or_else(|| output.to_string(), str::to_owned);
    let text = text.strip_prefix("STDOUT:\n").unwrap_or(&text);
    printable(text.lines().next().unwrap_or_default())
}
