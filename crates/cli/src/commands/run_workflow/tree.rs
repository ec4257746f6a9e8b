//! A run as a tree on the terminal: one line per node, further in the more come before it, moving while it runs. The last
//! line that a node has printed stands beside it and the lines before go above the tree. How far the run is stands below.

use std::collections::HashMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use isopod_client::sandbox::RunEvent;
use serde_json::Value;

use super::Watcher;
use super::layout::places;
use super::printed::Printed;
use crate::commands::runs::field;
use crate::commands::show::printable;

const TICK: Duration = Duration::from_millis(100);
/// A taller tree leaves no room for what nodes print.
const MAX_LINES: usize = 40;
/// Of a terminal that does not say how high it is.
const USUAL_HEIGHT: usize = 24;
/// Further in, names would leave the screen.
const DEEPEST: usize = 12;

pub(super) struct Tree {
    lines: MultiProgress,
    /// How many nodes fit on the screen.
    room: usize,
    nodes: HashMap<String, Node>,
    /// The line below the tree.
    progress: ProgressBar,
}

#[derive(Debug)]
struct Node {
    depth: usize,
    stage: Stage,
    /// None where there is no room for it.
    bar: Option<ProgressBar>,
    printed: Printed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pending,
    Running,
    Waiting,
    Done,
    Failed,
}

impl Watcher for Tree {
    fn begin(&mut self, run: &str, state: &Value) {
        self.note(&format!("run {}", printable(run)));
        let nodes = state["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        for place in places(nodes) {
            let bar = (self.nodes.len() < self.room).then(|| self.lines.insert_before(&self.progress, new_bar()));
            self.add(&place.id, place.depth, bar);
        }
        self.progress.set_style(style("{spinner} {wide_msg}"));
        self.progress.enable_steady_tick(TICK);
        self.count();
    }

    fn event(&mut self, event: &RunEvent) {
        let Some(id) = event.agent_id.as_deref() else { return };
        if event.event_type == "NodeCreated" && !self.nodes.contains_key(id) {
            self.splice(id, event.payload["by"].as_str());
        }
        let text = |name: &str| printable(&event.payload[name].as_str().unwrap_or_default().replace('\n', " "));
        match event.event_type.as_str() {
            "AgentStarted" => self.moving(id),
            "AgentCompleted" => self.completed(id, &event.payload),
            "AgentFailed" if event.payload["will_retry"] == true => self.still(id, Stage::Pending, "↻", &text("error")),
            "AgentFailed" => self.still(id, Stage::Failed, "✗", &text("error")),
            "SystemIntervention" if event.payload["action"] == "pause" => {
                self.still(id, Stage::Waiting, "⏸", &text("reason"));
            }
            "IntermediateLog" if event.payload["category"] == "TOOL_OUTPUT" => {
                self.print(id, event.payload["message"].as_str().unwrap_or_default());
            }
            // The tree shows by itself that a call has begun or ended.
            "IntermediateLog" if is_about_a_call(&event.payload) => {}
            "IntermediateLog" => self.note(&format!("{} │ {}", printable(id), text("message"))),
            _ => {}
        }
        self.count();
    }

    fn end(&mut self, state: &Value) {
        for bar in self.nodes.values().filter_map(|node| node.bar.as_ref()) {
            bar.abandon();
        }
        let error = if state["error"].is_null() { String::new() } else { format!(": {}", field(state, "error")) };
        self.progress.disable_steady_tick();
        self.progress.set_style(style("{wide_msg}"));
        let words = format!("{}, {}{error}", field(state, "status"), self.summary());
        self.progress.abandon_with_message(words.replace('\n', " "));
        // The last line is as wide as the terminal; what comes next begins below it.
        say_error!("");
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let height = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_row));
        let height = if height == 0 { USUAL_HEIGHT } else { height };
        let lines = MultiProgress::new();
        let progress = lines.add(ProgressBar::new_spinner());
        // One for the progress, one where the cursor rests.
        let room = height.saturating_sub(2).clamp(1, MAX_LINES);
        Self { lines, room, nodes: HashMap::new(), progress }
    }

    fn note(&self, words: &str) {
        // A terminal that is gone needs no words.
        let _ = self.lines.println(words);
    }

    /// A node that came while the run ran: below the one that wanted it.
    fn splice(&mut self, id: &str, by: Option<&str>) {
        let by = by.and_then(|by| self.nodes.get(by));
        let depth = by.map_or(0, |by| by.depth + 1);
        let shown = self.nodes.values().filter(|node| node.bar.is_some()).count();
        let bar = (shown < self.room).then(|| match by.and_then(|by| by.bar.as_ref()) {
            Some(above) => self.lines.insert_after(above, new_bar()),
            None => self.lines.insert_before(&self.progress, new_bar()),
        });
        self.add(id, depth, bar);
    }

    fn add(&mut self, id: &str, depth: usize, bar: Option<ProgressBar>) {
        if let Some(bar) = &bar {
            bar.set_style(style("{prefix}· {wide_msg}"));
            bar.set_prefix("  ".repeat(depth.min(DEEPEST)));
            bar.set_message(printable(id));
            bar.tick();
        }
        self.nodes.insert(id.to_owned(), Node { depth, stage: Stage::Pending, bar, printed: Printed::default() });
    }

    fn moving(&mut self, id: &str) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.stage = Stage::Running;
        node.printed = Printed::default();
        if let Some(bar) = &node.bar {
            bar.set_style(style("{prefix}{spinner} {elapsed} {wide_msg}"));
            bar.set_message(printable(id));
            bar.reset_elapsed();
            bar.enable_steady_tick(TICK);
        }
    }

    fn completed(&mut self, id: &str, payload: &Value) {
        // What came while it ran is above the tree already.
        if self.nodes.get(id).is_none_or(|node| node.printed.is_empty()) {
            self.print(id, &text_of(&payload["output"]));
        }
        let (rest, only) = self.nodes.get_mut(id).map(|node| node.printed.finish()).unwrap_or_default();
        rest.iter().for_each(|line| self.note(&format!("{} │ {line}", printable(id))));
        let mut words = only.unwrap_or_default();
        for file in payload["files_generated"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            words += &format!(" → {}", printable(file));
        }
        self.still(id, Stage::Done, "✓", words.trim());
    }

    /// Shows what a node prints while it runs.
    fn print(&mut self, id: &str, text: &str) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let above = node.printed.push(text);
        if let (Some(bar), Some(last)) = (&node.bar, node.printed.last()) {
            bar.set_message(format!("{}  {last}", printable(id)));
        }
        above.iter().for_each(|line| self.note(&format!("{} │ {line}", printable(id))));
    }

    fn still(&mut self, id: &str, stage: Stage, mark: &str, words: &str) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let took = (node.stage == Stage::Running).then(|| node.bar.as_ref().map(ProgressBar::elapsed)).flatten();
        node.stage = stage;
        if let Some(bar) = &node.bar {
            bar.disable_steady_tick();
            bar.set_style(style("{prefix}{wide_msg}"));
            let took = took.map_or(String::new(), |took| format!("{:.1} s  ", took.as_secs_f64()));
            bar.set_message(format!("{mark} {}  {took}{words}", printable(id)).trim_end().to_owned());
            bar.tick();
        }
    }

    fn count(&self) {
        self.progress.set_message(self.summary());
    }

    fn summary(&self) -> String {
        let count = |stage| self.nodes.values().filter(|node| node.stage == stage).count();
        let mut words = format!("{} of {} nodes done", count(Stage::Done), self.nodes.len());
        let others = [(Stage::Running, "running"), (Stage::Waiting, "waiting for a person"), (Stage::Failed, "failed")];
        for (stage, name) in others {
            if count(stage) > 0 {
                words += &format!(", {} {name}", count(stage));
            }
        }
        let hidden = self.nodes.values().filter(|node| node.bar.is_none()).count();
        if hidden > 0 {
            words += &format!(" ({hidden} not shown)");
        }
        words
    }
}

fn new_bar() -> ProgressBar {
    ProgressBar::new_spinner()
}

/// Our own templates are right; a plain spinner is what is left should one be not.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn is_about_a_call(payload: &Value) -> bool {
    payload["category"] == "TOOL_CALL" || payload["category"] == "TOOL_RESULT"
}

/// What a node gave, for people.
fn text_of(output: &Value) -> String {
    let text = output["result"].as_str().or_else(|| output.as_str());
    let text = match (text, output) {
        (Some(text), _) => text.to_owned(),
        (None, Value::Null) => String::new(),
        (None, other) => other.to_string(),
    };
    let silent = text.starts_with("Execution successful (No stdout).");
    if silent { String::new() } else { text.strip_prefix("STDOUT:\n").unwrap_or(&text).to_owned() }
}
