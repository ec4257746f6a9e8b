//! `isopod cluster init`: makes a cluster of one server.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_node::StateRoot;
use isopod_peer::InitError;
use isopod_store::Store;

use crate::args::ClusterDatabaseArgs;
use crate::commands::database::named;
use crate::failure::Hint;

pub(super) async fn init(state_dir: &Path, args: &ClusterDatabaseArgs) -> anyhow::Result<ExitCode> {
    let Some(url) = named(&args.database)? else {
        return Err(Hint::new(
            "a cluster needs a PostgreSQL database, which its servers share",
            "name it with --database postgres://USER:PASSWORD@HOST/NAME",
        ));
    };
    let state = StateRoot::open(state_dir)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let store = Store::connect(url, state.path(), host.trim()).await.context("could not open the database")?;
    let made = isopod_peer::init(&store, state.path(), Some(url)).await;
    store.close().await;
    match made {
        Ok(_) => {
            say!("made a cluster; start its first server with: isopod serve --peer-listen ADDRESS:7443");
            say!("another machine joins by a token: isopod cluster token");
            Ok(ExitCode::SUCCESS)
        }
        Err(InitError::Member) => {
            Err(Hint::new("this server is in a cluster already", "isopod cluster status shows it"))
        }
        Err(error) => Err(error.into()),
    }
}
