//! `isopod serve`: E2B on one port.

mod backend;
mod file;
mod greeting;
mod service_table;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use isopod_control::{OtlpExporter, ServeConfig, Store, TlsIdentity, serve};
use isopod_node::{Node, NodeConfig, StateRoot};
use isopod_wire::node::{NodeApi, Secret};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::storage::{Storage, explain};
use super::tls::{ServerTls, ensure_for_server};
use super::{DATABASE, node_config};
use crate::args::ServeArgs;
use crate::failure::Hint;
use greeting::Greeting;
use settings::{Settings, TlsChoice};

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
    let remote_backend = settings.backend.open()?;
    let state = StateRoot::open(&settings.state_dir)?;
    let (tls, local_tls) = identity(&settings, &state)?;
    let storage = Storage::new(state.path(), &settings.storage, Some(settings.execution_quota()));
    if settings.storage.is_asked_for {
        ensure_storage(&storage).await?;
    }
    let node_config = NodeConfig {
        workspace: Some(Arc::new(storage.clone())),
        ..node_config::for_server(settings.pool, settings.prepare.clone(), settings.registries.clone())
    };
    let node = Arc::new(Node::open(state.clone(), node_config).await?);
    let store = open_store(&settings, &state).await?;
    let key = store.ensure_first_key(settings.api_key.clone().map(Secret)).await?;

    let listener =
        TcpListener::bind(settings.listen).await.with_context(|| format!("could not listen on {}", settings.listen))?;
    let address = listener.local_addr()?;
    let mut config = ServeConfig::new(store.clone());
    settings.apply(&mut config)?;
    config.domain = settings.domain_at(address);
    config.tls = tls;
    config.remote_backend = remote_backend;
    config.workspace = Some(storage.workspace(&settings.storage));
    Greeting { address, settings: &settings, key: &key, local_tls: local_tls.as_ref() }.print();
    let api: Arc<dyn NodeApi> = Arc::clone(&node) as Arc<dyn NodeApi>;
    serve(config, listener, api, stop).await?;
    store.close().await;
    // Requests that were cut off may hold it for a moment; what stays then is swept by the next start.
    if let Some(node) = Arc::into_inner(node) {
        node.close().await;
    }
    Ok(ExitCode::SUCCESS)
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
async fn ensure_storage(storage: &Storage) -> anyhow::Result<()> {
    let storage = storage.clone();
    tokio::task::spawn_blocking(move || storage.ensure()).await?.map_err(explain)
}

/// Keys and code would cross the network for everyone to read.
fn check_listen(settings: &Settings) -> anyhow::Result<()> {
    let is_private = settings.listen.ip().is_loopback() || settings.tls != TlsChoice::Off;
    if is_private || settings.insecure_listen {
        return Ok(());
    }
    Err(Hint::new(
        format!("{} can be reached by others, and the connection is not encrypted", settings.listen),
        "add --tls, listen on 127.0.0.1, or add --insecure-listen if something else encrypts it",
    ))
}

/// What the server shows to clients, and where its files are if they are our own.
fn identity(settings: &Settings, state: &StateRoot) -> anyhow::Result<(Option<TlsIdentity>, Option<ServerTls>)> {
    let (certificate, key, local) = match &settings.tls {
        TlsChoice::Off => return Ok((None, None)),
        TlsChoice::Given { certificate, key } => (certificate.clone(), key.clone(), None),
        TlsChoice::Local => {
            let local = ensure_for_server(state, settings.domain_name(), settings.listen.ip())?;
            (local.certificate.clone(), local.key.clone(), Some(local))
        }
    };
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("could not read {}", path.display()));
    let identity = TlsIdentity::from_pem(&read(&certificate)?, &read(&key)?)
        .with_context(|| format!("could not use {} with {}", certificate.display(), key.display()))?;
    Ok((Some(identity), local))
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
}
