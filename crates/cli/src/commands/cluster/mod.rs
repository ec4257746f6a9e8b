//! `isopod cluster`: servers that forward requests to each other. The verbs work on the database and on this machine's
//! state directory, also while no server runs.

mod init;
mod remove;
mod status;
mod tokens;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_peer::Identity;
use isopod_store::Store;

use super::database::named;
use crate::args::{ClusterArgs, ClusterCommand, ClusterDatabaseArgs};
use crate::failure::Hint;
use crate::privilege::require_root;

pub(super) async fn run(state_dir: &Path, args: ClusterArgs) -> anyhow::Result<ExitCode> {
    require_root()?;
    match args.command {
        ClusterCommand::Init(database) => init::init(state_dir, &database).await,
        ClusterCommand::Token { expires_hours, database } => tokens::create(state_dir, expires_hours, &database).await,
        ClusterCommand::Tokens { json, database } => tokens::list(state_dir, json, &database).await,
        ClusterCommand::Revoke { id, database } => tokens::revoke(state_dir, &id, &database).await,
        ClusterCommand::Status { json, database } => status::status(state_dir, json, &database).await,
        ClusterCommand::Remove { server, database } => remove::remove(state_dir, &server, &database).await,
    }
}

/// This server's membership, and the cluster's database.
async fn open(state_dir: &Path, args: &ClusterDatabaseArgs) -> anyhow::Result<(Identity, Store)> {
    let Some(identity) = Identity::read(state_dir)? else {
        let message = format!("the server with the state directory {} is not in a cluster", state_dir.display());
        return Err(Hint::new(message, "make one with: isopod cluster init, or join one with: isopod serve --join"));
    };
    let Some(url) = named(&args.database)?.or(identity.database()) else {
        return Err(Hint::new("the cluster's database is not known", "name it with --database"));
    };
    let store = Store::connect_as_tool(url).await.context("could not open the database")?;
    Ok((identity, store))
}
