//! How sandboxes are shown: after they were made, in lists, and in detail.

use isopod_wire::ENVD_VERSION;
use isopod_wire::node::PauseMode;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::lifecycle::State;
use crate::store::SandboxRow;

/// A required field of old; nothing depends on what it says.
const CLIENT_ID: &str = "isopod";

/// The answer to create, connect and resume.
pub(super) fn made(app: &App, row: &SandboxRow) -> Value {
    json!({
        "sandboxID": row.id,
        "templateID": row.template,
        "alias": row.template,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": row.access_token,
        "trafficAccessToken": row.traffic_token,
        "domain": app.domain_text,
    })
    .without_nulls(&["envdAccessToken"])
}

/// One line of a list.
pub(super) fn listed(row: &SandboxRow) -> Value {
    json!({
        "sandboxID": row.id,
        "templateID": row.template,
        "alias": row.template,
        "clientID": CLIENT_ID,
        "startedAt": row.started_at,
        "endAt": row.ends_at,
        "cpuCount": row.limits.whole_cpus(),
        "memoryMB": row.limits.memory.as_mib(),
        "diskSizeMB": row.limits.disk.map_or(0, |disk| disk.as_mib()),
        "state": row.state.shown(),
        "envdVersion": ENVD_VERSION,
        "metadata": row.metadata,
    })
}

/// Everything about one.
pub(super) fn detail(app: &App, row: &SandboxRow) -> Value {
    let mut shown = listed(row);
    shown["domain"] = json!(app.domain_text);
    shown["envdAccessToken"] = json!(row.access_token);
    shown["allowInternetAccess"] = json!(row.allow_internet);
    let on_timeout = if row.auto_pause { "pause" } else { "kill" };
    shown["lifecycle"] = json!({ "autoResume": row.auto_resume, "onTimeout": on_timeout });
    if !row.network.is_empty() {
        shown["network"] = json!(row.network);
    }
    if let State::Paused(mode) = row.state {
        shown["pauseMode"] = json!(match mode {
            PauseMode::Memory => "full",
            PauseMode::Filesystem => "filesystem",
        });
    }
    shown.without_nulls(&["envdAccessToken"])
}

trait WithoutNulls {
    /// Leaves these fields out when there is nothing in them: some clients tell absent from null.
    fn without_nulls(self, names: &[&str]) -> Self;
}

impl WithoutNulls for Value {
    fn without_nulls(mut self, names: &[&str]) -> Self {
        let fields: Option<&mut Map<String, Value>> = self.as_object_mut();
        if let Some(fields) = fields {
            fields.retain(|name, value| !(value.is_null() && names.contains(&name.as_str())));
        }
        self
    }
}
