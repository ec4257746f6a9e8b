//! `isopod serve`: E2B on one port.

mod backend;
mod cluster;
mod dashboard_key;
#[cfg(test)]
mod env_example;
mod file;
mod greeting;
mod names;
mod quotas_table;
mod service_table;
mod settings;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use isopod_control::TlsIdentity;
use isopod_isolation::launch::exposes_privileged_processes;
use isopod_node::{Node, NodeConfig, StateRoot};
use isopod_otlp::OtlpExporter;
use isopod_peer::ClusterSettings;
use isopod_server::{ServerConfig, serve};
use isopod_service::backend::RemoteBackend;
use isopod_storage::ClientError;
use isopod_store::Store;
use isopod_wire::Bytes;
use isopod_wire::node::{NodeApi, Secret};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpSocket;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::running::RunningServer;
use super::storage::{Storage, explain, print_what_stays};
use super::tls::{ServerTls, ensure_for_server};
use super::{DATABASE, node_config};
use crate::args::ServeArgs;
use crate::failure::Hint;
use crate::host_packages::{list, missing_packages_beside};
use dashboard_key::dashboard_key;
use greeting::Greeting;
use names::Names;
use settings::{Settings, TlsChoice};

/// How long a start waits for the storage daemon, which tells a wrong setting at once.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(
    state_dir: Option<PathBuf>,
    args: ServeArgs,
    traces: Option<OtlpExporter>,
) -> anyhow::Result<ExitCode> {
    let (end_traces, traces_end) = oneshot::channel::<()>();
    let traces = traces.map(|traces| tokio::spawn(traces.run(traces_end)));
    let code = serve_until_told(state_dir, args).await;
    drop(end_traces);
    if let Some(traces) = traces {
        // Only fails if it panicked, which was said by then.
        let _ = traces.await;
    }
    code
}

async fn serve_until_told(state_dir: Option<PathBuf>, args: ServeArgs) -> anyhow::Result<ExitCode> {
    // Before anything is made: who is asked to stop while it starts still leaves in an orderly way.
    let stop = stop_signal()?;
    let settings = Settings::resolve(state_dir, args)?;
    check_listen(&settings)?;
    check_dumpable(exposes_privileged_processes())?;
    raise_descriptor_limit();
    // Before anything is made: a port that another program has is the likeliest reason for a start to fail.
    let socket = bind(settings.listen)?;
    let remote_backend = settings.backend.open()?;
    let state = StateRoot::open(&settings.state_dir)?;
    let cluster = settings.cluster.open(&state).await?;
    let mut settings = settings;
    if let (None, Some(cluster)) = (&settings.database, &cluster) {
        settings.database.clone_from(&cluster.database);
    }
    let (tls, local_tls) = identity(&settings, &state)?;
    let storage = Storage::new(state.path(), &settings.storage, Some(settings.execution_quota()));
    storage.keep_attached().context("could not start a thread")?;
    if settings.storage.is_asked_for {
        ensure_storage(&storage).await?;
    }
    let node_config = NodeConfig {
        workspace: Some(Arc::new(storage.clone())),
        private_networks: settings.sandbox_networks.clone(),
        criu: settings.criu.clone().map_or_else(node_config::find_criu, Ok),
        save_paused_after: settings.save_paused_after,
        pack_memory_after: settings.pack_memory_after,
        start_images: settings.start_images,
        keep_memory_free: settings.keep_memory_free.unwrap_or_else(default_free_memory),
        ..node_config::for_server(settings.pool, settings.prepare.clone(), settings.registries.clone())
    };
    let node = Arc::new(Node::open(state.clone(), node_config).await?);
    // Only now is it certain that no other server uses that daemon.
    let replaced = replace_storage_of_other_version(&settings, &storage).await;
    tell_disk(&node);
    tell_memory(&node).await;
    let parts = Parts { settings, state, storage: storage.clone(), tls, local_tls, remote_backend, cluster };
    let served = match replaced {
        Ok(()) => serve_node(&node, parts, socket, stop).await,
        Err(error) => Err(error),
    };
    if host_shuts_down().await {
        save_before_shutdown(&node).await;
    }
    // Requests that were cut off may hold it for a moment; what stays then is swept by the next start. A start that failed
    // takes back what it has made.
    if let Some(node) = Arc::into_inner(node) {
        node.close().await;
    }
    let code = served?;
    tokio::task::spawn_blocking(move || print_what_stays(&storage)).await?;
    Ok(code)
}

/// A tenth of the memory, at most 4 GiB.
fn default_free_memory() -> Bytes {
    let info = rustix::system::sysinfo();
    let total = info.totalram.saturating_mul(info.mem_unit.into());
    Bytes((total / 10).min(4 << 30))
}

/// Whether systemd is stopping everything, and not only this server.
async fn host_shuts_down() -> bool {
    let asking = tokio::task::spawn_blocking(|| {
        std::process::Command::new("systemctl").arg("is-system-running").stderr(Stdio::null()).output()
    });
    let answer = tokio::time::timeout(SYSTEMD_TIMEOUT, asking).await;
    matches!(answer, Ok(Ok(Ok(answer))) if answer.stdout.trim_ascii() == b"stopping")
}

/// Sandboxes outlive the server, but not the host. It would wait a minute and a half for those that run.
async fn save_before_shutdown(node: &Node) {
    match node.save_paused().await.len() {
        0 => tracing::info!("the host shuts down; all paused sandboxes are on disk"),
        lost => {
            tracing::warn!(lost, "the host shuts down; some paused sandboxes could not be saved and lose their memory")
        }
    }
    let ended = node.end_with_host().await;
    if ended > 0 {
        tracing::info!(ended, "the host shuts down; its sandboxes end");
    }
}

/// Where sandboxes write, and what this machine lacks.
fn tell_disk(node: &Node) {
    let kind = node.disk_kind();
    let no_limit = node.no_disk_limit();
    match &no_limit {
        None => tracing::info!("sandboxes write to {kind}, each up to its disk limit"),
        Some(reason) => tracing::warn!(
            "sandboxes write to {kind} and have no disk limit, so they can fill the disk of this host: {reason}"
        ),
    }
    let missing = missing_packages_beside(no_limit.is_none());
    if !missing.is_empty() {
        tracing::info!("`isopod setup` installs what this machine lacks: {}", list(&missing));
    }
}

/// What this server does without, before a client finds out.
async fn tell_memory(node: &Node) {
    if let Some(reason) = node.no_memory_snapshots().await {
        tracing::info!("pauses stay in RAM, and snapshots have files only: {reason}");
    }
}

/// What a start has found out before it opens the database.
struct Parts {
    settings: Settings,
    state: StateRoot,
    storage: Storage,
    tls: Option<TlsIdentity>,
    local_tls: Option<ServerTls>,
    remote_backend: Option<RemoteBackend>,
    cluster: Option<ClusterSettings>,
}

async fn serve_node(
    node: &Arc<Node>,
    parts: Parts,
    socket: TcpSocket,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<ExitCode> {
    let Parts { settings, state, storage, tls, local_tls, remote_backend, cluster } = parts;
    let store = open_store(&settings, &state).await?;
    let key = store.ensure_first_key(settings.api_key.clone().map(Secret)).await?;
    let listener = socket.listen(BACKLOG).with_context(|| format!("could not listen on {}", settings.listen))?;
    let address = listener.local_addr()?;
    let names = Names::open(&state, &settings.env_domains, tls).await?;
    let mut config = ServerConfig::new(store.clone());
    settings.apply(&mut config)?;
    config.control.domain = settings.domain_at(address);
    config.state_dir = Some(state.path().to_owned());
    if settings.dashboard {
        config.dashboard.key = dashboard_key(state.path())?;
    }
    config.control.node_name = node_name(&settings);
    config.control.plain_beside_tls = matches!(settings.tls, TlsChoice::Off | TlsChoice::Beside);
    config.control.tls.clone_from(&names.tls);
    config.control.other_domains.clone_from(&names.domains);
    config.local_names = names.names.clone();
    config.control.unacknowledged = isopod_isolation::sys::socket::unacknowledged;
    config.service.remote = remote_backend;
    config.control.cluster = cluster;
    config.control.workspace = Some(settings.with_default_mounts(storage.workspace(&settings.storage))?);
    let runs_programs = names.listener.is_some();
    let greeting = Greeting { address, settings: &settings, key: &key, local_tls: local_tls.as_ref(), runs_programs };
    let running = RunningServer { api_url: greeting.api_url() }.record(&state)?;
    let api: Arc<dyn NodeApi> = Arc::clone(node) as Arc<dyn NodeApi>;
    let listeners = std::iter::once(listener).chain(names.listener).collect();
    tokio::select! {
        served = serve(config, listeners, api, stop) => served?,
        () = async { greeting.print(node).await; std::future::pending().await } => {}
    }
    drop(running);
    store.close().await;
    Ok(ExitCode::SUCCESS)
}

/// How long systemd may take to say whether the host shuts down.
const SYSTEMD_TIMEOUT: Duration = Duration::from_secs(5);

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Takes the address, without accepting anybody yet: who connects before the server can answer is refused, not kept
/// waiting.
fn bind(address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let bound = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let bound = bound.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    });
    bound.with_context(|| format!("could not listen on {address}"))
}

/// Every sandbox takes a few descriptors, every connection two; the usual soft limit of 1024 is soon reached.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, creates are refused with the reason when descriptors run out.
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

async fn open_store(settings: &Settings, state: &StateRoot) -> anyhow::Result<Store> {
    let opened = match &settings.database {
        Some(url) => Store::connect(url, state.path(), &node_name(settings)).await,
        None => Store::open(state.path().join(DATABASE)).await,
    };
    opened.context("could not open the database")
}

fn node_name(settings: &Settings) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    settings.node_name.clone().or_else(host).unwrap_or_else(|| "isopod".to_owned())
}

/// What was asked for must work, and not fail at the first sandbox.
/// A store that refuses us is a mistake in the settings, and a reason not to start. A daemon that does not answer is none:
/// sandboxes without files need nothing of it, and whoever does need it asks again.
async fn ensure_storage(storage: &Storage) -> anyhow::Result<()> {
    let storage = storage.clone();
    let looking = tokio::task::spawn_blocking(move || storage.ensure());
    let Ok(looked) = tokio::time::timeout(STORAGE_TIMEOUT, looking).await else {
        tracing::warn!("the storage daemon does not answer; the workspace is away for now");
        return Ok(());
    };
    match looked? {
        Err(ClientError::Talk(error)) => {
            tracing::warn!(%error, "the storage daemon does not answer; the workspace is away for now");
            Ok(())
        }
        // It is replaced once the node has the state directory.
        Err(ClientError::Version) => Ok(()),
        looked => looked.map_err(explain),
    }
}

/// After an upgrade.
async fn replace_storage_of_other_version(settings: &Settings, storage: &Storage) -> anyhow::Result<()> {
    let replaced = storage.clone();
    let replacing = tokio::task::spawn_blocking(move || replaced.replace_other_version());
    match tokio::time::timeout(STORAGE_TIMEOUT, replacing).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "the storage daemon was not asked for its version"),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => tracing::warn!("the storage daemon does not answer; the workspace is away for now"),
    }
    if settings.storage.is_asked_for {
        ensure_storage(storage).await?;
    }
    Ok(())
}

/// Keys and code would cross the network for everyone to read.
fn check_listen(settings: &Settings) -> anyhow::Result<()> {
    let is_private =
        settings.listen.ip().is_loopback() || matches!(settings.tls, TlsChoice::Local | TlsChoice::Given { .. });
    if is_private || settings.insecure_listen {
        return Ok(());
    }
    Err(Hint::new(
        format!("{} can be reached by others, and the connection is not encrypted", settings.listen),
        "add --tls, listen on 127.0.0.1, or add --insecure-listen if something else encrypts it",
    ))
}

/// Processes that make sandboxes rely on the kernel to hide them from code in a zygote.
fn check_dumpable(is_exposed: bool) -> anyhow::Result<()> {
    if !is_exposed {
        return Ok(());
    }
    Err(Hint::new(
        "fs.suid_dumpable is 1 on this host, which opens the processes that make sandboxes to the code in them",
        "sysctl fs.suid_dumpable=0 (2 will do too), and look for the setting in /etc/sysctl.d",
    ))
}

/// What the server shows to clients, and where its files are if they are our own.
fn identity(settings: &Settings, state: &StateRoot) -> anyhow::Result<(Option<TlsIdentity>, Option<ServerTls>)> {
    let (certificate, key, local) = match &settings.tls {
        TlsChoice::Off => return Ok((None, None)),
        TlsChoice::Beside => return Ok((beside(settings, state), None)),
        TlsChoice::Given { certificate, key } => (certificate.clone(), key.clone(), None),
        TlsChoice::Local => {
            let local = ensure_for_server(state, settings.domain_name(), settings.listen.ip())?;
            (local.certificate.clone(), local.key.clone(), Some(local))
        }
    };
    Ok((Some(read_identity(&certificate, &key)?), local))
}

/// Nobody has asked for it, so that a server without it is better than none.
fn beside(settings: &Settings, state: &StateRoot) -> Option<TlsIdentity> {
    let made = ensure_for_server(state, settings.domain_name(), settings.listen.ip())
        .and_then(|local| read_identity(&local.certificate, &local.key));
    match made {
        Ok(identity) => Some(identity),
        Err(error) => {
            tracing::warn!("the server speaks http only: {error:#}");
            None
        }
    }
}

fn read_identity(certificate: &Path, key: &Path) -> anyhow::Result<TlsIdentity> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("could not read {}", path.display()));
    TlsIdentity::from_pem(&read(certificate)?, &read(key)?)
        .with_context(|| format!("could not use {} with {}", certificate.display(), key.display()))
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("could not wait for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("could not wait for signals")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_can_reach_must_be_encrypted() {
        let allowed = |arguments: ServeArgs| check_listen(&Settings::resolve(None, arguments).unwrap()).is_ok();
        let everywhere = || ServeArgs { listen: "0.0.0.0:3000".parse().ok(), ..ServeArgs::default() };
        assert!(!allowed(everywhere()));
        assert!(allowed(ServeArgs::default()));
        assert!(allowed(ServeArgs { tls: true, ..everywhere() }));
        assert!(allowed(ServeArgs { insecure_listen: true, ..everywhere() }));
    }

    #[test]
    fn a_host_that_exposes_privileged_processes_is_refused_with_what_to_do() {
        assert!(check_dumpable(false).is_ok());
        let refused = check_dumpable(true).unwrap_err();
        assert!(refused.to_string().starts_with("fs.suid_dumpable is 1"), "{refused}");
        let hint = format!("{:?}", refused.downcast_ref::<Hint>());
        assert!(hint.contains("sysctl fs.suid_dumpable=0"), "{hint}");
    }
}
