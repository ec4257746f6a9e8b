//! Sessions: one sandbox for a whole run of an agent, and the tool calls that use it.
//!
//! A session leases a sandbox to an [`Owner`]. [`Sessions::execute`] is a call of an agent, and [`Sessions::dispose`]
//! ends its run. The store is the source of truth: a row is written before the sandbox is created, and ends when the
//! sandbox is certainly gone. The lease lasts as long as the sandbox's own timeout: each call extends it, at its end
//! the sandbox is paused, and the next call resumes it.
//!
//! ```text
//! call ──► lease (`lease`, over `isopod_lease`) ──► push inputs ──► run ──► pull new files
//!              exclusively: map's lock, row, create, row
//! ```

mod checkpoint;
mod dispose;
mod error;
mod execute;
mod files;
mod lease;
mod map;
mod mirror;
mod output_sink;
mod promote;
mod report;
mod run_action;
mod search;
mod settings;
mod sweep;
mod tool;
mod tools;
mod workspace;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use isopod_store::TeamOwner;
use isopod_wire::SandboxId;

pub(crate) use checkpoint::CheckpointName;
pub(crate) use error::SessionError;
pub(crate) use files::{FileError, LibraryFile, ListedFile, PUBLIC};
pub(crate) use map::{RedisMap, RedisUrlError};
pub(crate) use output_sink::{OutputKind, OutputSink};
pub(crate) use report::NO_SANDBOX;
pub use search::SearchSettings;
pub use settings::SessionSettings;
pub(crate) use sweep::run_session_sweep;
pub(crate) use tool::{Action, ToolCall, ToolResult};
pub(crate) use tools::{UseError, parse_timeout};
pub use workspace::SyncCaps;
pub(crate) use workspace::{Directories, HostTree, RelPath, WorkspaceError, content_type};

use isopod_control::lifecycle::Fleet;
use isopod_control::templates::Catalogue;
use isopod_store::{Store, StoreError};

use isopod_outbound::Trust;
use map::{EmbeddedMap, SessionMap};
use mirror::Mirrored;
use search::{SearchSettingsError, WebSearch};
use workspace::Known;

/// All sessions of this server.
#[derive(Debug)]
pub(crate) struct Sessions {
    fleet: Arc<Fleet>,
    catalogue: Arc<Catalogue>,
    store: Store,
    map: Arc<dyn SessionMap>,
    /// The same map if it is Redis, for code that writes other keys there.
    redis: Option<Arc<RedisMap>>,
    settings: SessionSettings,
    /// The tool that only a server with a search service has.
    search: Option<WebSearch>,
    directories: Directories,
    /// The identity of this server for others that share the map.
    server: String,
    /// The files of sandboxes in use. Each lock is held only briefly.
    known: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<Known>>>>,
    mirrored: Mutex<HashMap<TeamOwner, Mirrored>>,
    /// Held while a promoted file and its row are written or removed, because they must match.
    promoting: Arc<tokio::sync::Mutex<()>>,
}

/// Why sessions cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Redis(#[from] RedisUrlError),
    #[error(transparent)]
    Search(#[from] SearchSettingsError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Sessions {
    pub(crate) async fn open(
        fleet: Arc<Fleet>,
        catalogue: Arc<Catalogue>,
        settings: SessionSettings,
        trust: Trust,
    ) -> Result<Arc<Self>, OpenError> {
        let store = fleet.store.clone();
        let redis = match settings.redis_url.as_deref() {
            Some(url) => Some(Arc::new(RedisMap::new(url, store.ensure_team().await?)?)),
            None => None,
        };
        let map: Arc<dyn SessionMap> = match &redis {
            Some(redis) => Arc::clone(redis) as Arc<dyn SessionMap>,
            None => Arc::new(EmbeddedMap::default()),
        };
        let directories = match &settings.shared_files {
            Some(base) => Directories::shared(base),
            None => Directories::of_teams(store.directory().join("sessions")),
        };
        let search = settings.search.clone().map(|search| WebSearch::new(search, trust)).transpose()?;
        let server = store.server_identity().await?;
        Ok(Arc::new(Self {
            fleet,
            catalogue,
            store,
            map,
            redis,
            settings,
            search,
            directories,
            server,
            known: Mutex::default(),
            mirrored: Mutex::default(),
            promoting: Arc::default(),
        }))
    }

    /// The Redis map, if there is one.
    pub(crate) fn redis(&self) -> Option<&Arc<RedisMap>> {
        self.redis.as_ref()
    }

    pub(crate) fn settings(&self) -> &SessionSettings {
        &self.settings
    }

    fn with_known<T>(&self, act: impl FnOnce(&mut HashMap<SandboxId, Arc<tokio::sync::Mutex<Known>>>) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_mirrored<T>(&self, act: impl FnOnce(&mut HashMap<TeamOwner, Mirrored>) -> T) -> T {
        act(&mut self.mirrored.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
