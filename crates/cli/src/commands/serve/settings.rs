//! The server's settings, resolved. Precedence: flags, environment, file, defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use isopod_files::FileLimits;
use isopod_files::workspace::Workspace;
use isopod_mcp::HttpConfig;
use isopod_node::{PoolSize, RegistrySettings};
use isopod_outbound::Policy;
use isopod_server::ServerConfig;
use isopod_wire::{Bytes, Cidr};

use super::backend::{BackendChoice, choose_backend};
use super::cluster::ClusterChoice;
use super::file::SettingsFile;
use crate::args::{DatabaseArgs, ServeArgs, Switch};
use crate::commands::database::named;
use crate::commands::default_state_dir;
use crate::commands::node_config::{parse_mirrors, parse_outbound, parse_private_networks};
use crate::commands::storage::Choice;
use crate::commands::tls::checked_domain;
use crate::env_names;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);
const DEFAULT_DOMAIN: &str = "isopod.localhost";
/// What the SDKs go to when they are told nothing but a key.
const DEFAULT_ENV_DOMAIN: &str = "e2b.app";
const DEFAULT_POOL: usize = 8;
/// What the SDKs of the code interpreter ask for.
const DEFAULT_PREPARE: &str = "code-interpreter-v1";
/// In seconds. Most pauses are shorter, and those that are not should cost no RAM.
const DEFAULT_SAVE_PAUSED_AFTER: u64 = 60;
/// In seconds. What is used again and again is not made smaller and larger each time.
const DEFAULT_PACK_MEMORY_AFTER: u64 = 900;
/// In the place of a list.
const NOTHING: &str = "none";

#[derive(Debug)]
pub(super) struct Settings {
    pub(super) state_dir: PathBuf,
    pub(super) listen: SocketAddr,
    domain: Option<String>,
    /// Other domains, for programs that `isopod env` runs.
    pub(super) env_domains: Vec<String>,
    pub(super) api_key: Option<String>,
    /// A PostgreSQL database instead of a file in the state directory.
    pub(super) database: Option<String>,
    /// What this server is called where several share it.
    pub(super) node_name: Option<String>,
    pub(super) cluster: ClusterChoice,
    pub(super) tls: TlsChoice,
    pub(super) insecure_listen: bool,
    open_metrics: bool,
    mcp: Switch,
    pub(super) dashboard: bool,
    pub(super) pool: PoolSize,
    pub(super) prepare: Vec<String>,
    /// The program that saves memory, if it is not the one of Isopod's package.
    pub(super) criu: Option<PathBuf>,
    pub(super) save_paused_after: Option<Duration>,
    pub(super) pack_memory_after: Option<Duration>,
    /// `None` for the default.
    pub(super) keep_memory_free: Option<Bytes>,
    pub(super) start_images: bool,
    pub(super) registries: RegistrySettings,
    outbound: Policy,
    /// Private networks that sandboxes may be allowed to reach.
    pub(super) sandbox_networks: Vec<Cidr>,
    redis_url: Option<String>,
    run_files: Option<PathBuf>,
    pub(super) backend: BackendChoice,
    pub(super) storage: Choice,
    agent_url: Option<String>,
    /// What only the file can say.
    file: SettingsFile,
}

/// Whether to speak https, and as whom.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TlsChoice {
    Off,
    /// Beside plain HTTP, with the authority of this machine's own.
    Beside,
    /// With the authority of this machine's own.
    Local,
    Given {
        certificate: PathBuf,
        key: PathBuf,
    },
}

impl Settings {
    pub(super) fn resolve(state_dir: Option<PathBuf>, args: ServeArgs) -> anyhow::Result<Self> {
        let file = match &args.config {
            Some(path) => SettingsFile::read(path)?,
            None => SettingsFile::default(),
        };
        Self::merge(state_dir, args, file)
    }

    fn merge(state_dir: Option<PathBuf>, args: ServeArgs, file: SettingsFile) -> anyhow::Result<Self> {
        let listen = args.listen.or(file.listen).unwrap_or(DEFAULT_LISTEN);
        let tls = choose_tls(&args, &file, listen)?;
        let domain = args.domain.clone().or_else(|| file.domain.clone());
        let mut env_domains = choose_env_domains(args.env_domains.as_ref().or(file.env_domains.as_ref()))?;
        // Clients that know the server by its own domain must see its own certificate.
        env_domains.retain(|other| !overlap(name_of(domain.as_deref()), other));
        let backend = choose_backend(&args, &file.backend)?;
        let cluster = file.cluster.choose(&args)?;
        let state_dir = state_dir.or_else(|| file.state_dir.clone()).unwrap_or_else(default_state_dir);
        let storage = file.storage.choose(&state_dir, &args.store)?;
        let database = args.database.database.clone().or_else(|| file.database.clone());
        let database = named(&DatabaseArgs { database })?.map(str::to_owned);
        let outbound = parse_outbound(args.allow_outbound.as_ref().unwrap_or(&file.outbound.allow))?;
        let networks = args.sandbox_networks.as_ref().unwrap_or(&file.sandbox.networks);
        let sandbox_networks = parse_private_networks(networks).context("sandbox networks")?;
        let mirrors = parse_mirrors(args.registry_mirror.as_ref().unwrap_or(&file.images.mirrors))?;
        Ok(Self {
            state_dir,
            database,
            node_name: args.node_name.or_else(|| file.node_name.clone()).filter(|name| !name.is_empty()),
            listen,
            domain,
            env_domains,
            cluster,
            api_key: args.api_key.filter(|key| !key.is_empty()),
            tls,
            redis_url: args.redis_url.filter(|url| !url.is_empty()).or_else(|| file.sessions.redis_url.clone()),
            run_files: args.run_files.or_else(|| file.sessions.files.clone()),
            backend,
            open_metrics: args.open_metrics || file.open_metrics,
            mcp: args.mcp.or(file.mcp).unwrap_or(Switch::On),
            dashboard: args.dashboard.or(file.dashboard).unwrap_or(Switch::On).is_on(),
            insecure_listen: args.insecure_listen || file.insecure_listen.unwrap_or(false),
            pool: PoolSize {
                ready: args.pool_ready.or(file.pool.ready).unwrap_or(DEFAULT_POOL),
                prepared: args.pool_prepared.or(file.pool.prepared).unwrap_or(DEFAULT_POOL),
            },
            criu: args.criu.or_else(|| file.sandbox.criu.clone()),
            keep_memory_free: file.sandbox.keep_memory_free,
            start_images: file.sandbox.start_images.unwrap_or(true),
            save_paused_after: after(
                args.save_paused_after.or(file.sandbox.save_paused_after),
                DEFAULT_SAVE_PAUSED_AFTER,
            ),
            pack_memory_after: after(
                args.pack_memory_after.or(file.sandbox.pack_memory_after),
                DEFAULT_PACK_MEMORY_AFTER,
            ),
            storage,
            agent_url: agent_url(args.agent_host, args.agent_port).or_else(|| file.runs.agent_url.clone()),
            registries: RegistrySettings { outbound: outbound.clone(), ..mirrors },
            outbound,
            sandbox_networks,
            prepare: choose_prepare(args.prepare.or_else(|| file.prepare.clone()))?,
            file,
        })
    }

    /// `host[:port]` as clients are told it. The port stands in it because they put `https://` before and nothing behind.
    pub(super) fn domain_at(&self, address: SocketAddr) -> String {
        let usual = if self.tls == TlsChoice::Off { 80 } else { 443 };
        match &self.domain {
            Some(domain) => domain.clone(),
            None if address.port() == usual => DEFAULT_DOMAIN.to_owned(),
            None => format!("{DEFAULT_DOMAIN}:{}", address.port()),
        }
    }

    /// The domain without a port.
    pub(super) fn domain_name(&self) -> &str {
        name_of(self.domain.as_deref())
    }

    /// How much the files of one execution may take, by whatever way they are written.
    pub(super) fn execution_quota(&self) -> u64 {
        let mut limits = FileLimits::default();
        self.file.files.apply(&mut limits);
        limits.execution_quota
    }

    /// The workspace with the operator's default mounts, which ask for it.
    pub(super) fn with_default_mounts(&self, workspace: Workspace) -> anyhow::Result<Workspace> {
        let mounts = self.file.files.default_mounts()?;
        let is_wanted = self.storage.is_asked_for || !mounts.is_empty();
        Ok(workspace.with_default_mounts(mounts).by_metadata(is_wanted))
    }

    /// What is not about the server's own start.
    pub(super) fn apply(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        let file = &self.file;
        config.control.allowed_origins.clone_from(&file.allowed_origins);
        config.control.allowed_hosts.clone_from(&file.allowed_hosts);
        config.control.outbound = self.outbound.clone();
        config.control.sandbox_networks.clone_from(&self.sandbox_networks);
        config.control.share_build_cache = file.images.share_build_cache;
        config.control.allow_host_base = file.images.allow_host_base;
        config.control.open_metrics = self.open_metrics;
        config.dashboard.enabled = self.dashboard;
        config.control.allow_internal_webhooks = file.webhooks.allow_internal;
        if let Some(path) = &file.webhooks.ca_file {
            config.control.webhook_authorities =
                std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        }
        config.mcp = match self.mcp {
            Switch::On => Some(HttpConfig { records: Some(self.state_dir.join("mcp")), ..HttpConfig::default() }),
            Switch::Off => None,
        };
        config.agents.runs.agent_url.clone_from(&self.agent_url);
        file.runs.apply(&mut config.agents.runs);
        file.sandbox.apply(config)?;
        file.team.apply(&mut config.control.team_limits);
        file.retention.apply(&mut config.control.retention);
        file.sessions.apply(&mut config.agents.sessions);
        file.tools.apply(std::env::var(env_names::SEARCH_KEY).ok(), &mut config.agents.sessions)?;
        config.agents.sessions.redis_url.clone_from(&self.redis_url);
        config.agents.sessions.shared_files.clone_from(&self.run_files);
        file.files.apply(&mut config.control.files);
        file.service.apply(config)?;
        config.control.tiers = file.quotas.tiers()?;
        Ok(())
    }
}

/// Where the agent service is. A host may say which scheme it wants.
fn agent_url(host: Option<String>, port: Option<u16>) -> Option<String> {
    let host = host.filter(|host| !host.is_empty());
    if host.is_none() && port.is_none() {
        return None;
    }
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let host = host.trim_end_matches('/');
    let base = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
    Some(format!("{base}:{}", port.unwrap_or(8000)))
}

/// Zero means never.
fn after(seconds: Option<u64>, default: u64) -> Option<Duration> {
    Some(seconds.unwrap_or(default)).filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// A name that is misspelt would otherwise be noticed by its first user.
fn choose_prepare(given: Option<Vec<String>>) -> anyhow::Result<Vec<String>> {
    let names = given.unwrap_or_else(|| vec![DEFAULT_PREPARE.to_owned()]);
    if names == [NOTHING] {
        return Ok(Vec::new());
    }
    match names.iter().find(|name| !isopod_node::has_recipe(name)) {
        Some(unknown) => bail!("there is no template {unknown:?} that could be made ready"),
        None => Ok(names),
    }
}

fn name_of(domain: Option<&str>) -> &str {
    let domain = domain.unwrap_or(DEFAULT_DOMAIN);
    domain.rsplit_once(':').map_or(domain, |(name, _port)| name)
}

/// Whether one domain is the other, or below it.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (format!(".{}", one.to_ascii_lowercase()), format!(".{}", other.to_ascii_lowercase()));
    one.ends_with(&other) || other.ends_with(&one)
}

/// Which other domains to answer for.
fn choose_env_domains(given: Option<&Vec<String>>) -> anyhow::Result<Vec<String>> {
    let Some(given) = given else { return Ok(vec![DEFAULT_ENV_DOMAIN.to_owned()]) };
    if *given == [NOTHING] {
        return Ok(Vec::new());
    }
    let words = given.iter().map(|word| word.trim()).filter(|word| !word.is_empty());
    words.map(|word| checked_domain(word).context("--env-domains")).collect()
}

/// Where only this machine can listen, previews and old SDKs get the https that they insist on without being asked for.
fn choose_tls(args: &ServeArgs, file: &SettingsFile, listen: SocketAddr) -> anyhow::Result<TlsChoice> {
    if let (Some(certificate), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) {
        return Ok(TlsChoice::Given { certificate, key });
    }
    if args.tls {
        return Ok(TlsChoice::Local);
    }
    match (&file.tls.cert, &file.tls.key) {
        _ if file.tls.enabled == Some(false) => Ok(TlsChoice::Off),
        (Some(certificate), Some(key)) => Ok(TlsChoice::Given { certificate: certificate.clone(), key: key.clone() }),
        (None, None) if file.tls.enabled == Some(true) => Ok(TlsChoice::Local),
        (None, None) if listen.ip().is_loopback() => Ok(TlsChoice::Beside),
        (None, None) => Ok(TlsChoice::Off),
        _ => bail!("the settings file has only one of tls.cert and tls.key"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SettingsFile {
        SettingsFile::parse(text).unwrap()
    }

    #[test]
    fn what_is_typed_comes_before_the_file_and_the_file_before_the_default() {
        let merge = |args, file| Settings::merge(None, args, file).unwrap();
        let default = merge(ServeArgs::default(), SettingsFile::default());
        assert_eq!((default.listen, default.pool.ready, default.tls), (DEFAULT_LISTEN, 8, TlsChoice::Beside));
        let text = "listen = '127.0.0.1:4000'\nstate_dir = '/from/file'\npool.ready = 3\ntls.enabled = true";
        let from_file = merge(ServeArgs::default(), file(text));
        assert_eq!((from_file.listen.port(), from_file.pool.ready, from_file.tls), (4000, 3, TlsChoice::Local));
        assert_eq!(from_file.state_dir, PathBuf::from("/from/file"));
        let args = ServeArgs { listen: "127.0.0.1:5000".parse().ok(), pool_ready: Some(1), ..ServeArgs::default() };
        let typed = Settings::merge(Some("/typed".into()), args, file(text)).unwrap();
        assert_eq!((typed.listen.port(), typed.pool.ready, typed.state_dir), (5000, 1, PathBuf::from("/typed")));
    }

    #[test]
    fn the_agent_service_is_where_the_environment_says() {
        let of = |host: Option<&str>, port| agent_url(host.map(str::to_owned), port);
        assert_eq!(of(None, None), None);
        assert_eq!(of(Some("agents"), None).as_deref(), Some("http://agents:8000"));
        assert_eq!(of(None, Some(9000)).as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(of(Some("https://agents.example/"), Some(443)).as_deref(), Some("https://agents.example:443"));
    }

    #[test]
    fn a_database_is_postgresql_or_refused_and_what_is_typed_comes_first() {
        let typed = |url: &str| DatabaseArgs { database: Some(url.to_owned()) };
        let merge = |database, text: &str| {
            let args = ServeArgs { database, ..ServeArgs::default() };
            Settings::merge(None, args, file(text)).map(|settings| settings.database)
        };
        assert_eq!(merge(DatabaseArgs::default(), "").unwrap(), None);
        let from_file = "database = 'postgres://db/file'";
        assert_eq!(merge(DatabaseArgs::default(), from_file).unwrap().as_deref(), Some("postgres://db/file"));
        assert_eq!(merge(typed("postgresql://db/typed"), from_file).unwrap().as_deref(), Some("postgresql://db/typed"));
        assert!(merge(typed("mysql://db/x"), "").is_err());
        assert!(merge(DatabaseArgs::default(), "database = '/var/lib/x.db'").is_err());
    }

    #[test]
    fn mirrors_that_are_typed_come_before_those_of_the_file_and_wrong_ones_are_refused() {
        let text = "[images]\nmirrors = ['docker.io=https://m.example', 'offline']";
        let from_file = Settings::merge(None, ServeArgs::default(), file(text)).unwrap().registries;
        assert_eq!((from_file.mirrors.len(), from_file.offline), (1, true));
        let args = ServeArgs { registry_mirror: Some(vec!["ghcr.io=http://x".to_owned()]), ..ServeArgs::default() };
        let typed = Settings::merge(None, args, file(text)).unwrap().registries;
        assert_eq!((typed.mirrors[0].from.as_str(), typed.offline), ("ghcr.io", false));
        assert!(Settings::merge(None, ServeArgs::default(), file("images.mirrors = ['docker.io']")).is_err());
    }

    #[test]
    fn only_private_networks_can_be_opened_to_sandboxes() {
        let merge = |typed: Option<&str>, text: &str| {
            let words = typed.map(|typed| typed.split(',').map(str::to_owned).collect());
            let args = ServeArgs { sandbox_networks: words, ..ServeArgs::default() };
            Settings::merge(None, args, file(text)).map(|settings| settings.sandbox_networks)
        };
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Cidr>>();
        let from_file = "[sandbox]\nnetworks = ['10.1.0.0/16']";
        assert_eq!(merge(None, "").unwrap(), []);
        assert_eq!(merge(Some(""), "").unwrap(), []);
        assert_eq!(merge(None, from_file).unwrap(), networks(&["10.1.0.0/16"]));
        assert_eq!(
            merge(Some("192.168.7.0/24, 172.16.0.1"), from_file).unwrap(),
            networks(&["192.168.7.0/24", "172.16.0.1"])
        );
        for wrong in ["0.0.0.0/0", "169.254.0.0/16", "8.8.8.8", "10.0.0.0/7", "lan"] {
            assert!(merge(Some(wrong), "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn https_stands_beside_http_only_where_nobody_else_hears_it_and_nobody_minds() {
        let of = |listen: &str, text: &str| {
            let args = ServeArgs { listen: listen.parse().ok(), ..ServeArgs::default() };
            Settings::merge(None, args, file(text)).unwrap().tls
        };
        assert_eq!(of("127.0.0.1:3000", ""), TlsChoice::Beside);
        assert_eq!(of("[::1]:3000", ""), TlsChoice::Beside);
        assert_eq!(of("0.0.0.0:3000", ""), TlsChoice::Off);
        assert_eq!(of("127.0.0.1:3000", "tls.enabled = false"), TlsChoice::Off);
        assert_eq!(of("127.0.0.1:3000", "tls.enabled = true"), TlsChoice::Local);
    }

    #[test]
    fn other_domains_are_e2bs_unless_something_else_is_said_and_wrong_ones_are_refused() {
        let of = |typed: Option<&str>, text: &str| {
            let words = typed.map(|typed| typed.split(',').map(str::to_owned).collect());
            let args = ServeArgs { env_domains: words, ..ServeArgs::default() };
            Settings::merge(None, args, file(text)).map(|settings| settings.env_domains)
        };
        assert_eq!(of(None, "").unwrap(), ["e2b.app"]);
        assert_eq!(of(None, "env_domains = ['e2b.dev']").unwrap(), ["e2b.dev"]);
        assert_eq!(of(Some("E2B.app, box.example"), "env_domains = ['e2b.dev']").unwrap(), ["e2b.app", "box.example"]);
        assert!(of(Some("none"), "").unwrap().is_empty());
        assert_eq!(of(Some("e2b.app,box.example"), "domain = 'eu.Box.example:443'").unwrap(), ["e2b.app"], "its own");
        assert_eq!(of(None, "domain = 'xe2b.app'").unwrap(), ["e2b.app"]);
        for wrong in ["app", "*.e2b.app", "e2b.app:443", "https://e2b.app", "none,e2b.app"] {
            assert!(of(Some(wrong), "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn half_a_certificate_is_refused() {
        assert!(Settings::merge(None, ServeArgs::default(), file("tls.cert = '/x'")).is_err());
    }

    #[test]
    fn clients_are_told_the_port_unless_it_is_the_usual_one() {
        let at = |text: &str, port: u16| {
            let settings = Settings::merge(None, ServeArgs::default(), file(text)).unwrap();
            settings.domain_at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
        };
        assert_eq!(at("", 3000), "isopod.localhost:3000");
        assert_eq!(at("tls.enabled = true", 443), "isopod.localhost");
        assert_eq!(at("domain = 'box.example'", 3000), "box.example");
    }
}
