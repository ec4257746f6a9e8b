//! Makes a cluster of one server.

use std::path::Path;

use isopod_store::{Joining, Store, StoreError};

use crate::identity::{Identity, IdentityError};
use crate::server_id::ServerId;

/// Why there is no new cluster.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("a cluster needs PostgreSQL, which its servers share")]
    NoServer,
    #[error("this server is a member of a cluster already")]
    Member,
    #[error("the database has a cluster already; `isopod cluster token` on one of its servers lets this one join")]
    Exists,
    #[error("could not make the certificates")]
    Identity(#[from] IdentityError),
    #[error("could not record the cluster")]
    Store(#[from] StoreError),
}

/// Makes the authority of a new cluster, and this server its first member. `database` is the URL of the database, for
/// machines that join.
///
/// # Errors
/// If the database or this server is in a cluster already.
pub async fn init(store: &Store, state_dir: &Path, database: Option<&str>) -> Result<Identity, InitError> {
    let server = ServerId::parse(store.server_id().ok_or(InitError::NoServer)?).map_err(IdentityError::from)?;
    if Identity::read(state_dir)?.is_some() {
        return Err(InitError::Member);
    }
    let identity = Identity::create(&server, database)?;
    // First the key, and then what says that there is one.
    identity.write(state_dir)?;
    match record(store, &server, &identity).await {
        Ok(()) => Ok(identity),
        Err(error) => {
            Identity::remove(state_dir)?;
            Err(error)
        }
    }
}

async fn record(store: &Store, server: &ServerId, identity: &Identity) -> Result<(), InitError> {
    let key_hash = identity.key_hash()?;
    if !store.init_cluster(&identity.fingerprint()?).await? {
        return Err(InitError::Exists);
    }
    let first = Joining { server: server.as_str(), key_hash: &key_hash, certificate_until: identity.until() };
    Ok(store.add_first_cluster_node(&first).await?)
}
