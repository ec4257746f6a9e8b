//! The store of this machine: a file in its state directory, or the PostgreSQL database that was named.

use std::path::Path;

use anyhow::Context;
use isopod_store::Store;

use super::DATABASE;
use crate::args::DatabaseArgs;
use crate::failure::Hint;
use crate::privilege::require_root;

/// For verbs that look at what a server has recorded. A server that runs on it sees changes at once.
pub(super) async fn open(state_dir: &Path, args: &DatabaseArgs) -> anyhow::Result<Store> {
    if let Some(url) = named(args)? {
        return Store::connect_as_tool(url).await.context("could not open the database");
    }
    require_root()?;
    let path = state_dir.join(DATABASE);
    if !path.exists() {
        let message = format!("no server has kept its state in {} yet", state_dir.display());
        let hint = "say where with --state-dir or --database, or start one with: isopod serve";
        return Err(Hint::new(message, hint));
    }
    Store::open(path).await.context("could not open the database")
}

/// The URL that was given, if it can be one.
pub(super) fn named(args: &DatabaseArgs) -> anyhow::Result<Option<&str>> {
    match args.database.as_deref().filter(|url| !url.is_empty()) {
        Some(url) if !url.starts_with("postgres://") && !url.starts_with("postgresql://") => {
            Err(Hint::new("the database is not one that is known", "write postgres://USER:PASSWORD@HOST/NAME"))
        }
        url => Ok(url),
    }
}
