//! A run in lines, for logs and for other programs.

use isopod_client::sandbox::RunEvent;
use serde_json::Value;

use super::Watcher;
use crate::commands::runs::event_lines;
use crate::printable::printable;
use crate::say::print_json;

/// One line of text per event.
pub(super) struct Plain;

impl Watcher for Plain {
    fn begin(&mut self, run: &str, _: &Value) {
        say!("run {}", printable(run));
    }

    fn event(&mut self, event: &RunEvent) {
        event_lines(event).iter().for_each(|line| say!("{line}"));
    }

    fn end(&mut self, state: &Value) {
        say!("{}", printable(state["status"].as_str().unwrap_or("unknown")));
    }
}

/// One JSON document per line: the events, then the state.
pub(super) struct Json;

impl Watcher for Json {
    fn begin(&mut self, _: &str, _: &Value) {}

    fn event(&mut self, event: &RunEvent) {
        print_json(event);
    }

    fn end(&mut self, state: &Value) {
        print_json(state);
    }
}
