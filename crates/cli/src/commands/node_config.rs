//! How nodes are set up by commands of this program.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use isopod_disk::DiskOptions;
use isopod_node::base::{BaseOptions, HostEnvironment};
use isopod_node::{HomeKind, NodeConfig, PoolSize, RegistrySettings, SpawnerProgram};
use isopod_outbound::Policy;
use isopod_wire::{Bytes, Cidr, Limits, PRIVATE_NETWORKS};

use crate::env_names;

/// A node for the server, whose sandboxes outlive it.
pub(super) fn for_server(pool: PoolSize, prepare: Vec<String>, registries: RegistrySettings) -> NodeConfig {
    NodeConfig { prepare, registries, ..config(HomeKind::Server, vec!["__spawner".into()], pool) }
}

/// A node for one command. Its name must be its own.
pub(super) fn for_command(state_dir: &Path) -> anyhow::Result<NodeConfig> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes)?;
    let name = format!("run-{}-{}", std::process::id(), hex::encode(bytes));
    let arguments = vec!["__spawner".into(), "--sweep-when-orphaned".into(), state_dir.into()];
    Ok(NodeConfig {
        registries: registries()?,
        // Whoever runs the command is the operator, and names what it may reach.
        private_networks: PRIVATE_NETWORKS.to_vec(),
        ..config(HomeKind::Command { name }, arguments, PoolSize::NONE)
    })
}

/// Where images come from, as the environment says.
fn registries() -> anyhow::Result<RegistrySettings> {
    let text = std::env::var(env_names::REGISTRY_MIRRORS).unwrap_or_default();
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    let settings = parse_mirrors(&words).context(env_names::REGISTRY_MIRRORS)?;
    let text = std::env::var(env_names::ALLOW_OUTBOUND).unwrap_or_default();
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    Ok(RegistrySettings { outbound: parse_outbound(&words).context(env_names::ALLOW_OUTBOUND)?, ..settings })
}

/// Where requests may go that others name, besides public addresses.
pub(super) fn parse_outbound(words: &[String]) -> anyhow::Result<Policy> {
    let words = words.iter().map(|word| word.trim()).filter(|word| !word.is_empty());
    Ok(Policy::new(words.map(str::parse).collect::<Result<_, _>>()?))
}

/// Private networks that sandboxes may be allowed to reach. Others would be named to no effect.
pub(super) fn parse_private_networks(words: &[String]) -> anyhow::Result<Vec<Cidr>> {
    let words = words.iter().map(|word| word.trim()).filter(|word| !word.is_empty());
    let networks = words.map(str::parse).collect::<Result<Vec<Cidr>, _>>()?;
    match networks.iter().find(|network| !PRIVATE_NETWORKS.iter().any(|private| private.contains(**network))) {
        None => Ok(networks),
        Some(other) => bail!("{other} does not lie in a private network (10/8, 100.64/10, 172.16/12, 192.168/16)"),
    }
}

/// Where images come from: `name=place` each, or `offline`.
pub(super) fn parse_mirrors(words: &[String]) -> anyhow::Result<RegistrySettings> {
    let mut settings = RegistrySettings::default();
    for word in words.iter().map(|word| word.trim()).filter(|word| !word.is_empty()) {
        match word {
            "offline" => settings.offline = true,
            mirror => settings.mirrors.push(mirror.parse()?),
        }
    }
    Ok(settings)
}

fn config(home: HomeKind, arguments: Vec<std::ffi::OsString>, pool: PoolSize) -> NodeConfig {
    NodeConfig {
        home,
        spawner: SpawnerProgram { program: "/proc/self/exe".into(), arguments },
        pool,
        prepare: Vec::new(),
        default_limits: Limits::default(),
        base: BaseOptions::default(),
        host_environment: HostEnvironment::ALL,
        variables: std::env::vars().collect(),
        disk: DiskOptions::default(),
        sweep_every: isopod_node::DEFAULT_SWEEP,
        registries: RegistrySettings::default(),
        pool_network: None,
        private_networks: Vec::new(),
        workspace: None,
        criu: Err("this command keeps no sandboxes".to_owned()),
        save_paused_after: None,
        pack_memory_after: None,
        keep_memory_free: Bytes(0),
        start_images: false,
    }
}

/// The program that the environment names, or that comes with Isopod's packages: beside its own program, or in the directory
/// for programs of packages, which is next to that of its own program.
pub(super) fn find_criu() -> Result<PathBuf, String> {
    let named = std::env::var_os(env_names::CRIU).map(PathBuf::from);
    let program = std::env::current_exe().unwrap_or_default();
    let below = |name: &str| program.parent().map(|directory| directory.join(name));
    let places = [below("isopod-criu"), below("../lib/isopod/criu"), Some(PathBuf::from("/usr/lib/isopod/criu"))];
    let found = places.into_iter().flatten().find(|place| place.is_file());
    named
        .or(found)
        .ok_or_else(|| format!("CRIU is missing: install an Isopod package that has it, or set {}", env_names::CRIU))
}
