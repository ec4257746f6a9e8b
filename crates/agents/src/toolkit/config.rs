//! The configuration of the toolkit of one execution. It is stored with the execution.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tool::Tool;

/// The fields of ROMA's own configuration, without the key: the request has shown one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolkitConfig {
    /// Seconds that the sandbox lives after the last call.
    #[schema(minimum = 1, maximum = 86400)]
    pub(crate) timeout: u32,
    /// After so long it is replaced before the next call.
    #[schema(exclusive_minimum = 0, maximum = 24)]
    pub(crate) max_lifetime_hours: f64,
    pub(crate) template: String,
    /// Create a new sandbox if the last one is gone. Otherwise the call fails.
    pub(crate) auto_reinitialize: bool,
    /// Only these tools. Empty means all.
    pub(crate) include_tools: Vec<Tool>,
    pub(crate) exclude_tools: Vec<Tool>,
}

impl Default for ToolkitConfig {
    fn default() -> Self {
        Self {
            timeout: 300,
            max_lifetime_hours: 23.5,
            template: "code-interpreter-v1".to_owned(),
            auto_reinitialize: true,
            include_tools: Vec::new(),
            exclude_tools: Vec::new(),
        }
    }
}

impl ToolkitConfig {
    /// Returns what is wrong with the configuration.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !(1..=86_400).contains(&self.timeout) {
            return Err("timeout must be 1 to 86400 seconds");
        }
        if !(self.max_lifetime_hours > 0.0 && self.max_lifetime_hours <= 24.0) {
            return Err("max_lifetime_hours must be more than 0 and at most 24");
        }
        if self.template.is_empty() || self.template.len() > 256 {
            return Err("template must have 1 to 256 characters");
        }
        Ok(())
    }

    pub(crate) fn has(&self, tool: Tool) -> bool {
        (self.include_tools.is_empty() || self.include_tools.contains(&tool)) && !self.exclude_tools.contains(&tool)
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout))
    }

    pub(super) fn max_lifetime(&self) -> Duration {
        Duration::try_from_secs_f64(self.max_lifetime_hours * 3600.0).unwrap_or(Duration::from_secs(24 * 3600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_config_may_say_has_bounds() {
        let parse = |text: &str| serde_json::from_str::<ToolkitConfig>(text);
        assert_eq!(parse("{}").unwrap(), ToolkitConfig::default());
        for bad in
            [r#"{"timeout":0}"#, r#"{"max_lifetime_hours":24.5}"#, r#"{"max_lifetime_hours":-1}"#, r#"{"template":""}"#]
        {
            assert!(parse(bad).unwrap().check().is_err(), "{bad}");
        }
        assert!(parse(r#"{"api_key":"x"}"#).is_err());
        let some = parse(r#"{"include_tools":["run_command","list_files"],"exclude_tools":["list_files"]}"#).unwrap();
        assert!(some.has(Tool::RunCommand) && !some.has(Tool::ListFiles) && !some.has(Tool::RunPythonCode));
    }
}
