//! The API over sandboxes that run nothing, to try clients against: `cargo run --example fake_server -- 127.0.0.1:3000`.

#[path = "../tests/all/support/backend.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests, which use all of it")]
mod backend;
#[path = "../tests/all/support/builder.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests, which use all of it")]
mod builder;
#[path = "../tests/all/support/guest.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests, which use all of it")]
mod guest;
#[path = "../tests/all/support/hostile.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests, which use all of it")]
mod hostile;
#[path = "../tests/all/support/node.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests, which use all of it")]
mod node;

use isopod_files::workspace::Workspace;
use isopod_server::{ServerConfig, serve};
use isopod_store::Store;
use isopod_wire::node::Secret;

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("workspace"))?;
    let store = Store::open(dir.path().join("isopod.db")).await?;
    store.ensure_first_key(Some(Secret(KEY.to_owned()))).await?;
    let listener = tokio::net::TcpListener::bind(&address).await?;
    let mut config = ServerConfig::new(store);
    config.control.workspace = Some(Workspace::new(dir.path().join("workspace")));
    // The service's commands run a few words; the guest of the fake node knows none.
    config.service.backend = Some(backend::fake());
    // No app of a fragment ever starts, and clients do not wait for long.
    config.service.app_start_timeout = std::time::Duration::from_secs(1);
    config.control.domain = format!("isopod.localhost:{}", listener.local_addr()?.port());
    tracing::info!(%address, key = KEY, "serving sandboxes that run nothing");
    serve(config, vec![listener], node::FakeNode::new(), std::future::pending::<()>()).await?;
    Ok(())
}
