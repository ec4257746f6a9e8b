//! How nodes are set up by commands of this program.

use std::path::Path;

use isopod_node::base::{BaseOptions, HostEnvironment};
use isopod_node::disk::DiskOptions;
use isopod_node::{HomeKind, NodeConfig, PoolSize, SpawnerProgram};
use isopod_wire::Limits;

/// A node for the server, whose sandboxes outlive it.
pub(super) fn for_server(pool: PoolSize, prepare: Vec<String>) -> NodeConfig {
    NodeConfig { prepare, ..config(HomeKind::Server, vec!["__spawner".into()], pool) }
}

/// A node for one command. Its name must be its own.
pub(super) fn for_command(state_dir: &Path) -> anyhow::Result<NodeConfig> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes)?;
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("run-{}-{random}", std::process::id());
    let arguments = vec!["__spawner".into(), "--sweep-when-orphaned".into(), state_dir.into()];
    Ok(config(HomeKind::Command { name }, arguments, PoolSize::NONE))
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
        registries: Default::default(),
        pool_network: None,
        workspace: None,
    }
}
