//! `[service]` of the settings file: the sandbox service's own settings.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use isopod_control::{TeamTokens, TokenKey};
use isopod_server::ServerConfig;
use isopod_service::{CommandPolicy, ServiceConfig};
use isopod_wire::node::Secret;
use serde::Deserialize;

use super::quotas_table::QuotaTable;
use crate::env_names;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ServiceTable {
    template: Option<String>,
    timeout_seconds: Option<u64>,
    command_timeout_seconds: Option<u64>,
    stale_hours: Option<u32>,
    keep_commands_days: Option<u32>,
    team: QuotaTable,
    agent: QuotaTable,
    task: QuotaTable,
    short_urls: ShortUrlTable,
    commands: CommandsTable,
    pub(super) tokens: TokensTable,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ShortUrlTable {
    live: Option<u32>,
    per_day: Option<u32>,
    per_address_per_day: Option<u32>,
    wrong_per_minute: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CommandsTable {
    allow: Vec<String>,
    deny: Vec<String>,
}

/// Whose tokens count. A shared secret stands in the environment only.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TokensTable {
    pub(super) jwks_file: Option<PathBuf>,
    jwks_url: Option<String>,
    issuer: Option<String>,
    audience: Option<String>,
}

const HOUR: Duration = Duration::from_secs(3600);

impl ServiceTable {
    pub(super) fn apply(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        let service = &mut config.service;
        if let Some(template) = &self.template {
            service.template.clone_from(template);
        }
        service.timeout = self.timeout_seconds.map_or(service.timeout, Duration::from_secs);
        service.stale_after = self.stale_hours.map_or(service.stale_after, |hours| HOUR * hours.clamp(1, 24 * 365));
        service.keep_commands =
            self.keep_commands_days.map_or(service.keep_commands, |days| HOUR * 24 * days.clamp(1, 3650));
        let seconds = self.command_timeout_seconds.or(timeout_from_environment()?);
        service.command_timeout = seconds.map_or(service.command_timeout, Duration::from_secs);
        if service.timeout.is_zero() || service.command_timeout.is_zero() {
            bail!("service.timeout_seconds and service.command_timeout_seconds must not be 0");
        }
        (service.quotas.team, service.quotas.agent) = (self.team.limits(), self.agent.limits());
        service.quotas.task = self.task.limits();
        self.short_urls.apply(service);
        service.policy = CommandPolicy { allow: self.commands.allow.clone(), deny: self.commands.deny.clone() };
        let secret = std::env::var(env_names::TEAM_TOKEN_SECRET).ok().filter(|secret| !secret.is_empty());
        config.control.team_tokens = self.tokens.resolve(secret)?;
        Ok(())
    }
}

impl ShortUrlTable {
    fn apply(&self, service: &mut ServiceConfig) {
        let limits = &mut service.short_urls;
        limits.live = self.live.unwrap_or(limits.live);
        limits.per_day = self.per_day.unwrap_or(limits.per_day);
        limits.per_address_per_day = self.per_address_per_day.map_or(limits.per_address_per_day, NonZeroU32::new);
        // With no guess at all, nobody could open a link.
        service.guesses_per_minute = self.wrong_per_minute.map_or(service.guesses_per_minute, |guesses| guesses.max(1));
    }
}

impl TokensTable {
    fn resolve(&self, secret: Option<String>) -> anyhow::Result<Option<TeamTokens>> {
        let key = match (&self.jwks_file, &self.jwks_url, secret) {
            (Some(path), None, None) => {
                std::fs::metadata(path).with_context(|| format!("could not read {}", path.display()))?;
                TokenKey::Jwks(path.clone())
            }
            (None, Some(url), None) => TokenKey::JwksUrl(checked_url(url)?),
            (None, None, Some(secret)) => TokenKey::Secret(Secret(secret)),
            (None, None, None) if self.issuer.is_some() || self.audience.is_some() => {
                let secret = env_names::TEAM_TOKEN_SECRET;
                bail!("service.tokens needs jwks_url or jwks_file, or {secret} in the environment")
            }
            (None, None, None) => return Ok(None),
            _ => {
                let secret = env_names::TEAM_TOKEN_SECRET;
                bail!("only one of service.tokens.jwks_url, service.tokens.jwks_file and {secret} can be set")
            }
        };
        Ok(Some(TeamTokens { key, issuer: self.issuer.clone(), audience: self.audience.clone() }))
    }
}

/// Whoever can change what comes from it can make tokens, so it is https, or this machine.
fn checked_url(url: &str) -> anyhow::Result<String> {
    let here = ["http://localhost", "http://127.0.0.1", "http://[::1]"];
    let rest = here.iter().find_map(|base| url.strip_prefix(base));
    let is_here = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']));
    if !is_here && !url.starts_with("https://") {
        bail!("service.tokens.jwks_url must be an https URL, or http on this machine: {url:?}");
    }
    Ok(url.to_owned())
}

fn timeout_from_environment() -> anyhow::Result<Option<u64>> {
    match std::env::var(env_names::E2B_TIMEOUT) {
        Err(_) => Ok(None),
        Ok(text) => {
            let parsed =
                text.trim().parse().with_context(|| format!("{} is not seconds: {text:?}", env_names::E2B_TIMEOUT));
            parsed.map(Some)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_in_the_docs_can_be_pasted() {
        let page = include_str!("../../../../../docs/service.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = super::super::file::SettingsFile::parse(example).unwrap();
        assert_eq!((file.service.agent.concurrent, file.service.team.memory_mb), (Some(5), Some(65536)));
        let all = example
            .replace("# jwks_file", "jwks_file")
            .replace("# jwks_url", "jwks_url")
            .replace("# issuer", "issuer")
            .replace("# audience", "audience");
        assert!(super::super::file::SettingsFile::parse(&all).is_ok());
    }

    #[test]
    fn limits_of_short_urls_are_set_one_by_one_and_that_of_addresses_can_be_turned_off() {
        let limits = |text: &str| {
            let file = super::super::file::SettingsFile::parse(text).unwrap();
            let mut service = ServiceConfig::default();
            file.service.short_urls.apply(&mut service);
            let limits = service.short_urls;
            (limits.live, limits.per_day, limits.per_address_per_day.map(NonZeroU32::get), service.guesses_per_minute)
        };
        assert_eq!(limits(""), (100, 100, Some(10), 30));
        assert_eq!(limits("service.short_urls.per_address_per_day = 0"), (100, 100, None, 30));
        assert_eq!(limits("service.short_urls.per_address_per_day = 500"), (100, 100, Some(500), 30));
        let all = "[service.short_urls]\nlive = 0\nper_day = 7\nwrong_per_minute = 0";
        assert_eq!(limits(all), (0, 7, Some(10), 1));
    }

    #[test]
    fn keys_come_from_https_or_from_this_machine() {
        for good in ["https://id.example/jwks.json", "http://localhost:9/x", "http://127.0.0.1/x", "http://[::1]:9/"] {
            assert!(checked_url(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example/x", "http://localhost.example/x", "http://127.0.0.1.example", "file:///x", ""] {
            assert!(checked_url(bad).is_err(), "{bad}");
        }
        let table = TokensTable { jwks_url: Some("https://x/keys".to_owned()), ..TokensTable::default() };
        assert!(matches!(table.resolve(None).unwrap().unwrap().key, TokenKey::JwksUrl(_)));
        assert!(table.resolve(Some("secret".to_owned())).is_err());
    }

    #[test]
    fn a_secret_and_a_key_file_contradict_each_other() {
        let with_file = TokensTable { jwks_file: Some("/dev/null".into()), ..TokensTable::default() };
        assert!(with_file.resolve(Some("secret".to_owned())).is_err());
        assert!(matches!(with_file.resolve(None).unwrap().unwrap().key, TokenKey::Jwks(_)));
        let with_both = TokensTable { jwks_url: Some("https://x/keys".to_owned()), ..with_file };
        assert!(with_both.resolve(None).is_err());
        let missing = TokensTable { jwks_file: Some("/does/not/exist".into()), ..TokensTable::default() };
        assert!(missing.resolve(None).is_err());
        assert!(TokensTable { issuer: Some("x".to_owned()), ..TokensTable::default() }.resolve(None).is_err());
        assert!(TokensTable::default().resolve(None).unwrap().is_none());
    }
}
