//! What an agent's configuration says about us: the program, and the server that it speaks with.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::args::McpInstallArgs;
use crate::env_names;

pub(super) struct Entry {
    command: String,
    /// Without the key.
    variables: BTreeMap<&'static str, String>,
    key: Option<String>,
    pub(super) has_key: bool,
}

impl Entry {
    pub(super) fn new(args: &McpInstallArgs, holds_secrets: bool) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("could not find the path of this program")?;
        let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
        let server = &args.server;
        let ca_file =
            server.ca_file.as_ref().map(std::path::absolute).transpose().context("could not use --ca-file")?;
        let variables = [
            (env_names::E2B_API_URL, given(&server.api_url)),
            (env_names::E2B_SANDBOX_URL, given(&server.sandbox_url)),
            (env_names::E2B_DOMAIN, given(&server.domain)),
            (env_names::CA_FILE, ca_file.map(|path| path.display().to_string())),
        ];
        let variables = variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let key = given(&server.api_key).filter(|_| holds_secrets);
        Ok(Self { command: program.display().to_string(), variables, has_key: key.is_some(), key })
    }

    /// To show. What is long enough to recognize the key by stays.
    pub(super) fn without_secrets(&self) -> Self {
        let hide = |key: &String| format!("{}…", key.chars().take(8).collect::<String>());
        Self {
            command: self.command.clone(),
            variables: self.variables.clone(),
            key: self.key.as_ref().map(hide),
            has_key: self.has_key,
        }
    }

    /// `words` stand for the key, if the file doesn't have it: the agent puts the key in their place.
    pub(super) fn json(&self, words: &str) -> Value {
        let mut variables: Map<String, Value> =
            self.variables.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        variables.insert(env_names::E2B_API_KEY.to_owned(), json!(self.key.as_deref().unwrap_or(words)));
        json!({ "type": "stdio", "command": self.command, "args": ["mcp"], "env": variables })
    }

    pub(super) fn toml(&self) -> String {
        // Strings of JSON are strings of TOML.
        let quote = |text: &str| Value::from(text).to_string();
        let mut variables: Vec<_> =
            self.variables.iter().map(|(name, value)| format!("{name} = {}", quote(value))).collect();
        variables.extend(self.key.iter().map(|key| format!("{} = {}", env_names::E2B_API_KEY, quote(key))));
        let mut lines = vec!["[mcp_servers.isopod]".to_owned(), format!("command = {}", quote(&self.command))];
        lines.push("args = [\"mcp\"]".to_owned());
        if self.key.is_none() {
            // Codex passes on no variables that it isn't told.
            lines.push(format!("env_vars = [\"{}\"]", env_names::E2B_API_KEY));
        }
        if !variables.is_empty() {
            lines.push(format!("env = {{ {} }}", variables.join(", ")));
        }
        lines.join("\n") + "\n"
    }

    #[cfg(test)]
    pub(super) fn sample(key: Option<&str>) -> Self {
        let variables = BTreeMap::from([(env_names::E2B_API_URL, "http://localhost:3000".to_owned())]);
        Self { command: "/usr/bin/isopod".to_owned(), variables, key: key.map(str::to_owned), has_key: key.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_has_no_key() {
        let entry = Entry::sample(Some("e2b_0123456789abcdef"));
        assert!(entry.toml().contains("e2b_0123456789abcdef"));
        let shown = entry.without_secrets();
        assert!(!shown.toml().contains("456789") && !shown.json("").to_string().contains("456789"));
    }

    #[test]
    fn without_a_key_the_agent_is_told_where_it_is() {
        let entry = Entry::sample(None);
        assert_eq!(entry.json("${E2B_API_KEY}")["env"]["E2B_API_KEY"], "${E2B_API_KEY}");
        assert!(entry.toml().contains("env_vars = [\"E2B_API_KEY\"]"));
    }
}
