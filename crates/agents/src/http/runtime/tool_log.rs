//! The log of an agent's tool call: what it writes and how it ends become events of the run, if the run is one of ours.

use serde::Serialize;

use crate::runs::ToolLog;
use crate::sessions::{OutputKind, OutputSink};

pub(super) struct CallLog(pub(super) Option<ToolLog>);

impl OutputSink for CallLog {
    fn write(&mut self, kind: OutputKind, text: &str) {
        if let Some(log) = &mut self.0 {
            log.write(kind, text);
        }
    }
}

impl CallLog {
    /// Says how the call ended. Results of tools say whether they succeeded.
    pub(super) fn end(self, done: &Result<impl Serialize, impl std::error::Error + 'static>) {
        let Some(log) = self.0 else { return };
        match done {
            Ok(result) => {
                let result = serde_json::to_value(result).unwrap_or_default();
                let is_success = result["success"] != false;
                let text = if is_success { &result["result"] } else { &result["error"] };
                log.end(is_success, &text.as_str().map_or_else(|| text.to_string(), str::to_owned));
            }
            Err(error) => log.end(false, &isopod_wire::error_chain(error)),
        }
    }
}
