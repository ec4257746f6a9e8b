//! `isopod serve`: E2B on one port.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use isopod_control::{FirstKey, ServeConfig, Store, serve};
use isopod_node::{Node, PoolSize, StateRoot};
use isopod_wire::node::{NodeApi, Secret};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::node_config;
use crate::args::ServeArgs;
use crate::failure::Hint;

pub(super) async fn run(state_dir: &Path, args: ServeArgs) -> anyhow::Result<ExitCode> {
    check_listen(&args)?;
    let state = StateRoot::open(state_dir)?;
    let pool = PoolSize { ready: args.pool_ready, prepared: args.pool_prepared };
    let node = Arc::new(Node::open(state.clone(), node_config::for_server(pool)).await?);
    let store = Store::open(state.path().join("isopod.db")).await.context("could not open the database")?;
    let key = store.ensure_first_key(args.api_key.clone().map(Secret)).await?;

    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("could not listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let mut config = ServeConfig::new(store.clone());
    if let Some(domain) = &args.domain {
        config.domain.clone_from(domain);
    }
    greet(address, &key, args.api_key.is_some());
    let api: Arc<dyn NodeApi> = Arc::clone(&node) as Arc<dyn NodeApi>;
    serve(config, listener, api, stop_signal()?).await?;
    store.close().await;
    // Requests that were cut off may hold it for a moment; what stays then is swept by the next start.
    if let Some(node) = Arc::into_inner(node) {
        node.close().await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Keys and code would cross the network for everyone to read.
fn check_listen(args: &ServeArgs) -> anyhow::Result<()> {
    if args.listen.ip().is_loopback() || args.insecure_listen {
        return Ok(());
    }
    Err(Hint::new(
        format!("{} can be reached by others, and the connection is not encrypted", args.listen),
        "listen on 127.0.0.1, or add --insecure-listen if something else encrypts it",
    ))
}

fn greet(address: SocketAddr, key: &FirstKey, given: bool) {
    let shown = match key {
        FirstKey::Made(key) => key.0.as_str(),
        FirstKey::Given if given => "(the key you gave)",
        _ => "(a key from an earlier start; make another with: isopod key create)",
    };
    println!("Isopod is ready. Paste this where your E2B code runs:\n");
    println!("  export E2B_API_KEY={shown}");
    println!("  export E2B_API_URL=http://{address}");
    println!("  export E2B_SANDBOX_URL=http://{address}\n");
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
