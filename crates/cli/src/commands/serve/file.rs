//! The settings file. What it does not know it refuses: a setting that is misspelt must not silently not count.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use isopod_agents::{RunsConfig, SearchSettings, SessionSettings};
use isopod_control::TeamLimits;
use isopod_files::{DefaultMounts, EVERY_TEAM, FileLimits};
use isopod_server::ServerConfig;
use isopod_store::Retention;
use isopod_wire::node::Secret;
use isopod_wire::{Bytes, FeatureGrants};
use serde::{Deserialize, Deserializer};

use super::cluster::ClusterTable;
use super::quotas_table::QuotasTable;
use super::service_table::ServiceTable;
use crate::args::{BackendKind, StoreArgs, Switch, TunableArgs};
use crate::commands::storage::Choice;
use crate::env_names;

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SettingsFile {
    pub(super) state_dir: Option<PathBuf>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) insecure_listen: Option<bool>,
    /// As `--open-metrics`.
    pub(super) open_metrics: bool,
    /// As `--mcp`.
    pub(super) mcp: Option<Switch>,
    /// As `--dashboard`.
    pub(super) dashboard: Option<Switch>,
    pub(super) domain: Option<String>,
    /// As `--env-domains`.
    pub(super) env_domains: Option<Vec<String>>,
    pub(super) database: Option<String>,
    pub(super) node_name: Option<String>,
    pub(super) prepare: Option<Vec<String>>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) cluster: ClusterTable,
    pub(super) tls: TlsTable,
    pub(super) pool: PoolTable,
    pub(super) sandbox: SandboxTable,
    pub(super) team: TeamTable,
    pub(super) webhooks: WebhooksTable,
    pub(super) retention: RetentionTable,
    pub(super) sessions: SessionsTable,
    pub(super) backend: BackendTable,
    pub(super) storage: StorageTable,
    pub(super) files: FilesTable,
    pub(super) runs: RunsTable,
    pub(super) tools: ToolsTable,
    pub(super) service: ServiceTable,
    pub(super) quotas: QuotasTable,
    pub(super) images: ImagesTable,
    pub(super) outbound: OutboundTable,
}

/// Where requests go that users name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OutboundTable {
    /// As `--allow-outbound`.
    pub(super) allow: Vec<String>,
}

/// Where images come from.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ImagesTable {
    /// As `--registry-mirror`.
    pub(super) mirrors: Vec<String>,
    /// Teams get what the same steps of other teams' builds made.
    pub(super) share_build_cache: bool,
    /// As `isopod template build --allow-host-base`, for all builds.
    pub(super) allow_host_base: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsTable {
    pub(super) enabled: Option<bool>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PoolTable {
    pub(super) ready: Option<usize>,
    pub(super) prepared: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SandboxTable {
    /// As `--sandbox-networks`.
    pub(super) networks: Vec<String>,
    /// Features of the kernel by team, or by `*` for all.
    allow: BTreeMap<String, Vec<String>>,
    /// Features of the kernel that sandboxes of a template have without asking, by its name or id.
    allow_templates: BTreeMap<String, Vec<String>>,
    cpus: Option<f64>,
    #[serde(deserialize_with = "size")]
    memory: Option<Bytes>,
    #[serde(deserialize_with = "size")]
    disk: Option<Bytes>,
    pids: Option<u32>,
    /// As `--criu`.
    pub(super) criu: Option<PathBuf>,
    /// As `--save-paused-after`.
    pub(super) save_paused_after: Option<u64>,
    /// As `--pack-memory-after`.
    pub(super) pack_memory_after: Option<u64>,
    /// How much of the host's memory to keep free, by saving paused sandboxes.
    #[serde(deserialize_with = "size")]
    pub(super) keep_memory_free: Option<Bytes>,
    /// Whether sandboxes of built templates start from saved memory.
    pub(super) start_images: Option<bool>,
    max_lifetime_hours: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TeamTable {
    concurrent: Option<u32>,
    creates_per_second: Option<u32>,
    create_burst: Option<u32>,
    snapshots: Option<u32>,
    #[serde(deserialize_with = "size")]
    snapshot_memory: Option<Bytes>,
    #[serde(deserialize_with = "size")]
    snapshot_disk: Option<Bytes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebhooksTable {
    pub(super) allow_internal: bool,
    pub(super) ca_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RunsTable {
    /// As `--agent-host` and `--agent-port` in one.
    pub(super) agent_url: Option<String>,
    pub(super) allow_internal_agents: bool,
    cleanup_deadline_seconds: Option<u64>,
}

impl RunsTable {
    pub(super) fn apply(&self, runs: &mut RunsConfig) {
        runs.allow_internal_agents = self.allow_internal_agents;
        if let Some(seconds) = self.cleanup_deadline_seconds {
            runs.cleanup_deadline = Duration::from_secs(seconds);
        }
    }
}

/// Tools of agents that need another service.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ToolsTable {
    search: SearchTable,
}

/// The key does not stand in here: it comes from the environment.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SearchTable {
    url: Option<String>,
    key_header: Option<String>,
}

impl ToolsTable {
    /// With the key of the search service, if there is one.
    pub(super) fn apply(&self, key: Option<String>, sessions: &mut SessionSettings) -> anyhow::Result<()> {
        let SearchTable { url, key_header } = &self.search;
        if url.is_none() && key_header.is_some() {
            bail!("tools.search has a key_header but no url");
        }
        let key = key.filter(|key| !key.is_empty()).map(Secret);
        sessions.search = url.clone().map(|url| SearchSettings { url, key, key_header: key_header.clone() });
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RetentionTable {
    logs_hours: Option<u64>,
    metrics_hours: Option<u64>,
    events_hours: Option<u64>,
    ended_hours: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SessionsTable {
    pub(super) redis_url: Option<String>,
    pub(super) files: Option<PathBuf>,
    template: Option<String>,
    timeout_seconds: Option<u64>,
    keep_paused_hours: Option<u64>,
    keep_files_hours: Option<u64>,
    keep_promoted_hours: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BackendTable {
    pub(super) kind: Option<BackendKind>,
    pub(super) url: Option<String>,
    pub(super) sandbox_url: Option<String>,
    pub(super) ca_file: Option<PathBuf>,
}

/// Keys do not stand in here: they come from the environment, or from the file that `credentials_file` names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StorageTable {
    store: Option<String>,
    base_path: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
    pub(super) credentials_file: Option<PathBuf>,
    profile: Option<String>,
    stat_cache_ttl: Option<f64>,
    #[serde(deserialize_with = "size")]
    cache: Option<Bytes>,
    idle_exit_seconds: Option<u64>,
}

impl StorageTable {
    /// What was typed or stands in the environment comes first.
    pub(super) fn choose(&self, state_dir: &Path, args: &StoreArgs) -> anyhow::Result<Choice> {
        let mut variables: BTreeMap<String, String> = std::env::vars().collect();
        let file = self.credentials_file.as_ref().map(|path| path.display().to_string());
        let says = [
            (env_names::AWS_REGION, self.region.clone()),
            (env_names::AWS_ENDPOINT_URL, self.endpoint.clone()),
            (env_names::AWS_SHARED_CREDENTIALS_FILE, file),
            (env_names::AWS_PROFILE, self.profile.clone()),
        ];
        for (name, value) in says {
            if let Some(value) = value {
                variables.entry(name.to_owned()).or_insert(value);
            }
        }
        let is_named = args.storage.is_some() || env_names::BUCKETS.iter().any(|name| variables.contains_key(*name));
        let store = StoreArgs {
            storage: args.storage.clone().or_else(|| self.store.clone().filter(|_| !is_named)),
            storage_base_path: args.storage_base_path.clone().or_else(|| self.base_path.clone()),
        };
        let tunables = TunableArgs {
            stat_cache_ttl: self.stat_cache_ttl,
            cache: self.cache,
            idle_exit: self.idle_exit_seconds,
            ..TunableArgs::default()
        };
        Choice::resolve(state_dir, &store, &tunables, &variables)
    }
}

impl SettingsFile {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
        let mut file = Self::parse(&text).with_context(|| format!("could not use {}", path.display()))?;
        // A path in a file is meant from where the file is, wherever the server is started.
        let directory = path.parent().unwrap_or(Path::new(""));
        let paths = [
            &mut file.state_dir,
            &mut file.tls.cert,
            &mut file.tls.key,
            &mut file.webhooks.ca_file,
            &mut file.sessions.files,
            &mut file.backend.ca_file,
            &mut file.storage.credentials_file,
            &mut file.service.tokens.jwks_file,
        ];
        for path in paths.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        Ok(file)
    }

    pub(super) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}

impl SandboxTable {
    pub(super) fn apply(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        let limits = &mut config.control.sandbox_limits;
        if let Some(cpus) = self.cpus {
            if !(0.05..=256.0).contains(&cpus) {
                bail!("sandbox.cpus must be between 0.05 and 256, not {cpus}");
            }
            limits.cpu_millis = (cpus * 1000.0).round() as u32;
        }
        limits.memory = self.memory.unwrap_or(limits.memory);
        limits.disk = self.disk.or(limits.disk);
        limits.pids = self.pids.unwrap_or(limits.pids);
        if let Some(hours) = self.max_lifetime_hours {
            config.control.max_lifetime = whole_hours(hours);
        }
        let granted = FeatureGrants::parse(&self.allow).context("sandbox.allow")?;
        config.control.features = granted.with_templates(&self.allow_templates).context("sandbox.allow_templates")?;
        config.control.sandbox_limits.check().context("the limits for sandboxes are not acceptable")
    }
}

/// What may be stored through the API.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FilesTable {
    #[serde(deserialize_with = "size")]
    max_file_size: Option<Bytes>,
    #[serde(deserialize_with = "size")]
    execution_quota: Option<Bytes>,
    retention_hours: Option<u64>,
    default_mount: Option<DefaultMountSetting>,
}

/// For every team, or by team and template.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DefaultMountSetting {
    EveryTeam(String),
    Table(BTreeMap<String, String>),
}

impl FilesTable {
    pub(super) fn default_mounts(&self) -> anyhow::Result<DefaultMounts> {
        let table = match &self.default_mount {
            None => BTreeMap::new(),
            Some(DefaultMountSetting::EveryTeam(id)) => BTreeMap::from([(EVERY_TEAM.to_owned(), id.clone())]),
            Some(DefaultMountSetting::Table(table)) => table.clone(),
        };
        DefaultMounts::parse(table).context("files.default_mount")
    }

    pub(super) fn apply(&self, limits: &mut FileLimits) {
        limits.max_file_size = self.max_file_size.map_or(limits.max_file_size, |size| size.0);
        limits.execution_quota = self.execution_quota.map_or(limits.execution_quota, |size| size.0);
        limits.execution_retention = self.retention_hours.map(whole_hours).or(limits.execution_retention);
    }
}

impl TeamTable {
    pub(super) fn apply(&self, limits: &mut TeamLimits) {
        limits.concurrent = self.concurrent.unwrap_or(limits.concurrent);
        limits.creates_per_second = self.creates_per_second.unwrap_or(limits.creates_per_second);
        limits.create_burst = self.create_burst.unwrap_or(limits.create_burst);
        limits.snapshots = self.snapshots.unwrap_or(limits.snapshots);
        limits.snapshot_memory = self.snapshot_memory.map(|size| size.0).or(limits.snapshot_memory);
        limits.snapshot_disk = self.snapshot_disk.map(|size| size.0).or(limits.snapshot_disk);
    }
}

impl RetentionTable {
    pub(super) fn apply(&self, retention: &mut Retention) {
        retention.logs = self.logs_hours.map_or(retention.logs, whole_hours);
        retention.metrics = self.metrics_hours.map_or(retention.metrics, whole_hours);
        retention.events = self.events_hours.map_or(retention.events, whole_hours);
        retention.ended = self.ended_hours.map_or(retention.ended, whole_hours);
    }
}

impl SessionsTable {
    pub(super) fn apply(&self, sessions: &mut SessionSettings) {
        if let Some(template) = &self.template {
            sessions.template.clone_from(template);
        }
        sessions.timeout = self.timeout_seconds.map_or(sessions.timeout, Duration::from_secs);
        sessions.keep_paused = self.keep_paused_hours.map_or(sessions.keep_paused, whole_hours);
        sessions.keep_files = self.keep_files_hours.map_or(sessions.keep_files, whole_hours);
        sessions.keep_promoted = self.keep_promoted_hours.map_or(sessions.keep_promoted, whole_hours);
    }
}

fn whole_hours(hours: u64) -> Duration {
    HOUR.saturating_mul(u32::try_from(hours).unwrap_or(u32::MAX))
}

/// As people write it, such as `512M`.
fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_or_wrong_is_refused() {
        for bad in
            ["lisen = '127.0.0.1:1'", "[tls]\ncertificate = 'x'", "listen = 3000", "sandbox.memory = 'lots'", "["]
        {
            assert!(SettingsFile::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_search_service_has_a_url_and_perhaps_a_key() {
        let search = |text: &str, key: Option<&str>| {
            let mut sessions = SessionSettings::default();
            let applied = SettingsFile::parse(text).unwrap().tools.apply(key.map(str::to_owned), &mut sessions);
            applied.map(|()| sessions.search)
        };
        assert!(search("", Some("key")).unwrap().is_none(), "a key alone is no service");
        let found = search("[tools.search]\nurl = 'http://x/'\nkey_header = 'X-Key'", Some("key")).unwrap().unwrap();
        assert_eq!((found.url.as_str(), found.key_header.as_deref()), ("http://x/", Some("X-Key")));
        assert_eq!(found.key, Some(Secret("key".to_owned())));
        assert_eq!(search("tools.search.url = 'http://x/'", Some("")).unwrap().unwrap().key, None);
        assert!(search("tools.search.key_header = 'X-Key'", None).is_err());
        assert!(SettingsFile::parse("tools.search.key = 'in the file'").is_err());
    }

    #[test]
    fn the_example_in_the_docs_can_be_pasted() {
        let page = include_str!("../../../../../docs/operations.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = SettingsFile::parse(example).unwrap();
        assert_eq!(file.sandbox.memory, Some(Bytes::mib(1024)));
        for line in example.lines().filter_map(|line| line.strip_prefix("# ")).filter(|line| line.contains(" = ")) {
            let table = example.split(line).next().unwrap().rsplit("\n[").next().unwrap();
            let header = table.split_once("]\n").map_or(String::new(), |(name, _)| format!("[{name}]\n"));
            SettingsFile::parse(&format!("{header}{line}")).unwrap_or_else(|error| panic!("{header}{line}: {error:#}"));
        }
    }

    #[test]
    fn the_settings_page_lists_every_key_and_no_other() {
        let page = include_str!("../../../../../docs/settings.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let mut listed: Vec<String> = rows.map(str::to_owned).collect();
        listed.sort_unstable();
        let mut known = keys_below("");
        known.sort_unstable();
        assert!(known.len() > 70, "{known:?}");
        assert_eq!(listed, known);
    }

    /// All keys that the file may have. The refusal of a key that no table has names those that it does have.
    fn keys_below(table: &str) -> Vec<String> {
        let refused = SettingsFile::parse(&format!("{table}'?' = 1")).unwrap_err();
        let Some(("", expected)) = refused.message().split_once("unknown field `?`, expected ") else {
            return vec![table.trim_end_matches('.').to_owned()];
        };
        expected.split('`').skip(1).step_by(2).flat_map(|key| keys_below(&format!("{table}{key}."))).collect()
    }

    #[test]
    fn the_origins_in_the_quick_start_can_be_pasted() {
        let page = include_str!("../../../../../docs/quick-start.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = SettingsFile::parse(example).unwrap();
        assert_eq!(file.allowed_origins, ["https://app.example", "http://192.0.2.7:8080"]);
    }

    #[test]
    fn the_files_on_the_server_page_can_be_pasted() {
        let page = include_str!("../../../../../docs/server.md");
        let files: Vec<&str> = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(files.len(), 3);
        for file in files {
            SettingsFile::parse(file).expect(file);
        }
    }
}
