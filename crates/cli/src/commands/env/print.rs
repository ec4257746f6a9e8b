//! The variables, as shells and other programs read them.

use serde_json::{Map, Value};

use super::server::FoundServer;
use crate::args::{EnvArgs, EnvShell};
use crate::env_names;
use crate::say::print_json_pretty;

pub(super) fn print(found: &FoundServer, args: &EnvArgs) {
    let variables = variables(found);
    if args.json {
        let object: Map<String, Value> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str()))).collect();
        return print_json_pretty(&object);
    }
    for (name, value) in &variables {
        if args.dotenv {
            say!("{name}={}", dotenv_quoted(value));
            continue;
        }
        match args.shell.unwrap_or_else(own_shell) {
            EnvShell::Fish => say!("set -gx {name} {}", fish_quoted(value)),
            EnvShell::Bash | EnvShell::Zsh | EnvShell::Sh => say!("export {name}={}", quoted(value)),
        }
    }
}

fn variables(found: &FoundServer) -> Vec<(&'static str, String)> {
    let mut variables =
        vec![(env_names::E2B_API_KEY, found.key.clone()), (env_names::E2B_API_URL, found.api_url.clone())];
    variables.extend(found.sandbox_url.clone().map(|url| (env_names::E2B_SANDBOX_URL, url)));
    variables.push((env_names::E2B_VOLUME_API_URL, found.api_url.clone()));
    if let Some(trust) = &found.trust {
        variables.push((env_names::SSL_CERT_FILE, trust.bundle.display().to_string()));
        variables.push((env_names::NODE_EXTRA_CA_CERTS, trust.authority.display().to_string()));
    }
    variables
}

/// All shells but fish read the same.
fn own_shell() -> EnvShell {
    let shell = std::env::var(env_names::SHELL).unwrap_or_default();
    if shell.ends_with("/fish") { EnvShell::Fish } else { EnvShell::Sh }
}

/// Within single quotes, only they themselves mean something.
fn quoted(value: &str) -> String {
    match is_plain(value) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', r"'\''")),
    }
}

fn fish_quoted(value: &str) -> String {
    match is_plain(value) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'")),
    }
}

fn dotenv_quoted(value: &str) -> String {
    match is_plain(value) {
        true => value.to_owned(),
        false => format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\"").replace('$', r"\$")),
    }
}

fn is_plain(value: &str) -> bool {
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,@%+".contains(&byte);
    !value.is_empty() && value.bytes().all(is_harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_reach_each_shell_as_they_are() {
        assert_eq!(quoted("http://127.0.0.1:3000"), "http://127.0.0.1:3000");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(fish_quoted(r"a\b'c"), r"'a\\b\'c'");
        assert_eq!(dotenv_quoted("a\"b$c"), "\"a\\\"b\\$c\"");
        assert_eq!((quoted(""), fish_quoted(""), dotenv_quoted("")), ("''".into(), "''".into(), "\"\"".into()));
    }
}
