//! A running member of the cluster.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use isopod_store::{Store, StoreError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::identity::{Identity, IdentityError};
use crate::join::Doorkeeper;
use crate::listen::PeerListener;
use crate::locations::Locations;
use crate::members::Members;
use crate::origin::Origin;
use crate::placement::Placement;
use crate::pool::Pool;
use crate::question::Question;
use crate::server_id::ServerId;
use crate::stream::TunnelStream;
use crate::tls::PeerTls;

/// About 20 MB.
const MAX_LOCATIONS: usize = 100_000;
const CHECK_CERTIFICATE_EVERY: Duration = Duration::from_secs(3600);

/// What a member needs to run.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    pub identity: Identity,
    /// Where renewed certificates are written.
    pub state_dir: PathBuf,
    pub listen: SocketAddr,
    /// `host:port` by which other members reach the listener. By default, its own address.
    pub address: Option<String>,
    /// The database that machines that join are told.
    pub database: Option<String>,
}

/// Why a member could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("could not listen on {address} for other servers")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("could not prepare the certificates")]
    Identity(#[from] IdentityError),
    #[error("could not use the database")]
    Store(#[from] StoreError),
    #[error(
        "this server is not a member of the cluster: it was removed, or the state directory is of another server; `isopod serve --join` joins again"
    )]
    NotMember,
}

/// A member of the cluster.
pub struct Cluster {
    pub(crate) own: ServerId,
    pub(crate) store: Store,
    pub(crate) members: Arc<Members>,
    pub(crate) pool: Pool,
    pub(crate) locations: Locations<Question, ServerId>,
    pub(crate) placement: Box<dyn Placement>,
    pub(crate) stop: CancellationToken,
    tls: Arc<RwLock<PeerTls>>,
    settings: ClusterSettings,
    /// `host:port`, with the real port.
    address: String,
}

impl Cluster {
    /// Begins to listen and tells the other members the address. Nothing is accepted before [`Self::run`].
    ///
    /// # Errors
    /// If the port is taken, or the server is not a member.
    pub async fn open(
        settings: ClusterSettings,
        store: Store,
        placement: Box<dyn Placement>,
        stop: CancellationToken,
    ) -> Result<(Arc<Self>, TcpListener), OpenError> {
        let own = settings.identity.server()?;
        if store.server_id() != Some(own.as_str()) {
            return Err(OpenError::NotMember);
        }
        let failed = |source| OpenError::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let address = settings.address.clone().unwrap_or_else(|| bound.to_string());
        let identity = renew(&settings.identity, &settings.state_dir)?.unwrap_or_else(|| settings.identity.clone());
        let tls = Arc::new(RwLock::new(PeerTls::of(&identity)?));
        let members = Arc::new(Members::new(store.clone(), own.clone()));
        let pool = Pool::new(Arc::clone(&members), Arc::clone(&tls));
        let locations = Locations::new(MAX_LOCATIONS);
        let cluster = Self { own, store, members, pool, locations, placement, stop, tls, settings, address };
        if !cluster.announce(&identity).await? {
            return Err(OpenError::NotMember);
        }
        cluster.members.refresh().await?;
        Ok((Arc::new(cluster), listener))
    }

    /// Serves other members until the server stops. `serve` gets each of their requests as a stream.
    pub async fn run<F>(self: Arc<Self>, listener: TcpListener, serve: F)
    where
        F: Fn(TunnelStream, Origin) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    {
        let identity = Arc::new(self.settings.identity.clone());
        let doorkeeper = Doorkeeper { store: self.store.clone(), identity, database: self.settings.database.clone() };
        let listening = PeerListener {
            tls: Arc::clone(&self.tls),
            members: Arc::clone(&self.members),
            doorkeeper,
            serve: Arc::new(serve),
            stop: self.stop.clone(),
        };
        let following = Arc::clone(&self.members).follow(self.stop.clone());
        tokio::join!(listening.run(listener), following, self.renew_in_time());
    }

    /// `host:port` by which other members reach this one.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Renews the certificate long before it ends. Connections that are open stay.
    async fn renew_in_time(&self) {
        let mut identity = self.settings.identity.clone();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(CHECK_CERTIFICATE_EVERY) => {}
            }
            match self.renew_if_needed(&identity).await {
                Ok(Some(renewed)) => identity = renewed,
                Ok(None) => {}
                Err(error) => {
                    let error = isopod_wire::error_chain(&*error);
                    tracing::error!(error, until = ?identity.until(), "could not renew the certificate for other servers");
                }
            }
        }
    }

    async fn renew_if_needed(
        &self,
        identity: &Identity,
    ) -> Result<Option<Identity>, Box<dyn std::error::Error + Send + Sync>> {
        let Some(renewed) = renew(identity, &self.settings.state_dir)? else { return Ok(None) };
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = PeerTls::of(&renewed)?;
        self.announce(&renewed).await?;
        tracing::info!(until = renewed.until().to_rfc3339(), "renewed the certificate for other servers");
        Ok(Some(renewed))
    }

    async fn announce(&self, identity: &Identity) -> Result<bool, OpenError> {
        let hash = identity.key_hash()?;
        Ok(self.store.announce_cluster_node(&self.address, &hash, identity.until()).await?)
    }
}

fn renew(identity: &Identity, state_dir: &std::path::Path) -> Result<Option<Identity>, IdentityError> {
    let Some(renewed) = identity.renewed_if_needed()? else { return Ok(None) };
    renewed.write(state_dir)?;
    Ok(Some(renewed))
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("own", &self.own).field("address", &self.address).finish_non_exhaustive()
    }
}
