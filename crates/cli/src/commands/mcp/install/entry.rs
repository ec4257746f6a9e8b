//! What an agent's configuration says about us: the program and the server that it speaks with, or the URL of the server.

use std::collections::BTreeMap;

use anyhow::Context;
use isopod_client::BaseUrl;
use serde_json::{Map, Value, json};

use crate::args::McpInstallArgs;
use crate::commands::remote::api_url;
use crate::env_names;

pub(super) struct Entry {
    way: Way,
    /// Without the key.
    variables: BTreeMap<&'static str, String>,
    key: Option<String>,
    pub(super) has_key: bool,
}

/// How the agent reaches us.
#[derive(Clone)]
enum Way {
    /// It starts this program.
    Program(String),
    /// It connects to this URL.
    Url(String),
}

impl Way {
    fn of(args: &McpInstallArgs) -> anyhow::Result<Self> {
        let given = args.url.clone().filter(|url| !url.is_empty());
        if !args.http && given.is_none() {
            let program = std::env::current_exe().context("could not find the path of this program")?;
            return Ok(Self::Program(program.display().to_string()));
        }
        let url = given.unwrap_or_else(|| format!("{}/mcp", api_url(&args.server).trim_end_matches('/')));
        let place = url.split('?').next().unwrap_or_default();
        place.parse::<BaseUrl>().with_context(|| format!("{url:?} is not a URL"))?;
        Ok(Self::Url(url))
    }
}

impl Entry {
    pub(super) fn new(args: &McpInstallArgs, holds_secrets: bool) -> anyhow::Result<Self> {
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
        Ok(Self { way: Way::of(args)?, variables, has_key: key.is_some(), key })
    }

    /// To show. What is long enough to recognize the key by stays.
    pub(super) fn without_secrets(&self) -> Self {
        let hide = |key: &String| format!("{}…", key.chars().take(8).collect::<String>());
        Self {
            way: self.way.clone(),
            variables: self.variables.clone(),
            key: self.key.as_ref().map(hide),
            has_key: self.has_key,
        }
    }

    /// `words` stand for the key, if the file doesn't have it: the agent puts the key in their place.
    pub(super) fn json(&self, words: &str) -> Value {
        let key = self.key.as_deref().unwrap_or(words);
        let command = match &self.way {
            Way::Program(command) => command,
            Way::Url(url) => {
                return json!({ "type": "http", "url": url, "headers": { "Authorization": format!("Bearer {key}") } });
            }
        };
        let mut variables: Map<String, Value> =
            self.variables.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        variables.insert(env_names::E2B_API_KEY.to_owned(), json!(key));
        json!({ "type": "stdio", "command": command, "args": ["mcp"], "env": variables })
    }

    pub(super) fn toml(&self) -> String {
        // Strings of JSON are strings of TOML.
        let quote = |text: &str| Value::from(text).to_string();
        let command = match &self.way {
            Way::Program(command) => command,
            Way::Url(url) => {
                let key = match &self.key {
                    Some(key) => format!("http_headers = {{ Authorization = {} }}", quote(&format!("Bearer {key}"))),
                    None => format!("bearer_token_env_var = \"{}\"", env_names::E2B_API_KEY),
                };
                return format!("[mcp_servers.isopod]\nurl = {}\n{key}\n", quote(url));
            }
        };
        let mut variables: Vec<_> =
            self.variables.iter().map(|(name, value)| format!("{name} = {}", quote(value))).collect();
        variables.extend(self.key.iter().map(|key| format!("{} = {}", env_names::E2B_API_KEY, quote(key))));
        let mut lines = vec!["[mcp_servers.isopod]".to_owned(), format!("command = {}", quote(command))];
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
        let way = Way::Program("/usr/bin/isopod".to_owned());
        Self { way, variables, key: key.map(str::to_owned), has_key: key.is_some() }
    }

    #[cfg(test)]
    fn sample_url(key: Option<&str>) -> Self {
        Self { way: Way::Url("http://127.0.0.1:3000/mcp".to_owned()), ..Self::sample(key) }
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
        let shown = Entry::sample_url(Some("e2b_0123456789abcdef")).without_secrets();
        assert!(!shown.toml().contains("456789") && !shown.json("").to_string().contains("456789"));
    }

    #[test]
    fn a_url_comes_with_the_key_or_where_it_is() {
        let entry = Entry::sample_url(None);
        assert_eq!(
            entry.json("${E2B_API_KEY}"),
            json!({
                "type": "http",
                "url": "http://127.0.0.1:3000/mcp",
                "headers": { "Authorization": "Bearer ${E2B_API_KEY}" },
            })
        );
        let table = "[mcp_servers.isopod]\nurl = \"http://127.0.0.1:3000/mcp\"\n";
        assert_eq!(entry.toml(), format!("{table}bearer_token_env_var = \"E2B_API_KEY\"\n"));
        let entry = Entry::sample_url(Some("e2b_01"));
        assert_eq!(entry.json("")["headers"]["Authorization"], "Bearer e2b_01");
        assert_eq!(entry.toml(), format!("{table}http_headers = {{ Authorization = \"Bearer e2b_01\" }}\n"));
    }

    #[test]
    fn without_a_key_the_agent_is_told_where_it_is() {
        let entry = Entry::sample(None);
        assert_eq!(entry.json("${E2B_API_KEY}")["env"]["E2B_API_KEY"], "${E2B_API_KEY}");
        assert!(entry.toml().contains("env_vars = [\"E2B_API_KEY\"]"));
    }
}
