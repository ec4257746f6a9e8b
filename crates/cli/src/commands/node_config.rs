//! How nodes are set up by commands of this program.

use std::path::Path;

use anyhow::Context;
use isopod_node::base::{BaseOptions, HostEnvironment};
use isopod_node::disk::DiskOptions;
use isopod_node::{HomeKind, NodeConfig, PoolSize, RegistrySettings, SpawnerProgram};
use isopod_wire::Limits;

use crate::env_names;

/// A node for the server, whose sandboxes outlive it.
pub(super) fn for_server(pool: PoolSize, prepare: Vec<String>, registries: RegistrySettings) -> NodeConfig {
    NodeConfig { prepare, registries, ..config(HomeKind::Server, vec!["__spawner".into()], pool) }
}

/// A node for one command. Its name must be its own.
pub(super) fn for_command(state_dir: &Path) -> anyhow::Result<NodeConfig> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes)?;
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("run-{}-{random}", std::process::id());
    let arguments = vec!["__spawner".into(), "--sweep-when-orphaned".into(), state_dir.into()];
    Ok(NodeConfig { registries: registries()?, ..config(HomeKind::Command { name }, arguments, PoolSize::NONE) })
}

/// Where images come from, as the environment says.
fn registries() -> anyhow::Result<RegistrySettings> {
    let text = std::env::var(env_names::REGISTRY_MIRRORS).unwrap_or_default();
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    parse_mirrors(&words).context(env_names::REGISTRY_MIRRORS)
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
        workspace: None,
    }
}
