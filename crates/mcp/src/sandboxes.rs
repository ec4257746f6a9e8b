//! The sandboxes of one client: its own one, which the first call that needs it creates, named sessions, and those that it
//! asked for.
//!
//! ```text
//! first call ──▶ created ──▶ kept alive while the client is connected ──▶ killed when it leaves
//!                                      └─ the MCP server is killed: ends at its timeout
//! named session: created or found ──▶ kept alive ──▶ the client leaves: paused at its timeout, found again by its name
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use isopod_client::guest::GuestError;
use isopod_client::sandbox::{ListSandboxes, SandboxInfo, SandboxState};
use isopod_client::{ApiError, Client, NewSandbox, Sandbox, SandboxId};
use isopod_wire::error_chain;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::config::McpConfig;
use crate::tool_error::ToolError;

/// Marks sandboxes that end with a client.
const MARK: &str = "isopod.mcp";
/// How many calls of a client run at the same time. Over HTTP they go on when the client hangs up.
pub(crate) const MAX_CALLS: usize = 64;
const SESSION_KEY: &str = "isopod.session";
/// How long calls may take to stop when the client leaves. Clients kill a server after two seconds or later.
const STOP: Duration = Duration::from_millis(700);

/// Which sandbox a call is about.
#[derive(Clone, Debug, Default)]
pub(crate) enum Target {
    /// The client's own, or the named session that is the default.
    #[default]
    Default,
    Sandbox(String),
    Session(String),
}

/// What becomes of a sandbox when the client leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lasting {
    /// It is killed.
    No,
    /// It is a named session, which lasts.
    Session(String),
    /// It is somebody else's.
    Foreign,
}

/// What a new sandbox is to be like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) template: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) internet: Option<bool>,
    /// Whether it becomes the client's own sandbox.
    pub(crate) is_own: bool,
}

/// What a client has, to be found again by a later server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inventory {
    pub(crate) sandboxes: BTreeMap<SandboxId, Lasting>,
    pub(crate) own: Option<SandboxId>,
}

/// Is told of every change of what a client has.
#[async_trait::async_trait]
pub(crate) trait Notebook: Send + Sync + std::fmt::Debug {
    async fn note(&self, inventory: Inventory);
}

#[derive(Debug)]
pub(crate) struct Sandboxes {
    config: McpConfig,
    /// The client of the configuration, or one with newer credentials.
    client: RwLock<Client>,
    notebook: Option<Arc<dyn Notebook>>,
    /// Held while the notebook is written, so that the last note is the newest.
    noting: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Held while a sandbox is created, so that calls at the same time share one, and none is missed at the end.
    creating: tokio::sync::Mutex<()>,
    /// The calls that may run at the same time.
    pub(crate) calls: Semaphore,
    /// Work that has to be finished when the client leaves.
    pub(crate) tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeMap<SandboxId, Held>,
    own: Option<SandboxId>,
    /// The client's own sandbox, if it ended and the client was not told.
    lost: Option<SandboxId>,
    is_closed: bool,
}

#[derive(Debug)]
struct Held {
    sandbox: Sandbox,
    lasting: Lasting,
}

impl Sandboxes {
    pub(crate) fn new(config: McpConfig) -> Self {
        let client = RwLock::new(config.client.clone());
        Self {
            config,
            client,
            notebook: None,
            noting: tokio::sync::Mutex::default(),
            state: Mutex::default(),
            creating: tokio::sync::Mutex::default(),
            calls: Semaphore::new(MAX_CALLS),
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn with_notebook(mut self, notebook: Arc<dyn Notebook>) -> Self {
        self.notebook = Some(notebook);
        self
    }

    /// Takes over what the client had with an earlier server, as far as it still exists.
    pub(crate) async fn restore(&self, inventory: Inventory) {
        for (id, lasting) in inventory.sandboxes {
            match self.client().attach(&id).await {
                Ok((sandbox, _)) => self.hold(sandbox, lasting),
                Err(error) => tracing::info!(%id, error = error_chain(&error), "a sandbox of an MCP session is gone"),
            }
        }
        let mut state = self.state();
        match inventory.own {
            Some(own) if state.held.contains_key(&own) => state.own = Some(own),
            lost => state.lost = lost,
        }
    }

    /// Uses newer credentials from now on.
    pub(crate) fn renew(&self, client: Client) {
        for held in self.state().held.values_mut() {
            held.sandbox = held.sandbox.clone().with_client(&client);
        }
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
    }

    async fn note(&self) {
        let Some(notebook) = &self.notebook else { return };
        let _noting = self.noting.lock().await;
        let inventory = {
            let state = self.state();
            let sandboxes = state.held.iter().map(|(id, held)| (id.clone(), held.lasting.clone())).collect();
            Inventory { sandboxes, own: state.own.clone() }
        };
        notebook.note(inventory).await;
    }

    pub(crate) fn config(&self) -> &McpConfig {
        &self.config
    }

    pub(crate) fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The sandbox of a call. Creates the client's own sandbox, or that of a session, if there is none.
    pub(crate) async fn get(self: &Arc<Self>, target: Target) -> Result<Sandbox, ToolError> {
        match target {
            Target::Sandbox(id) => self.find_by_id(&id).await,
            Target::Session(name) => self.open_session(name).await,
            Target::Default => match self.config.session.clone() {
                Some(name) => self.open_session(name).await,
                None => self.own().await,
            },
        }
    }

    /// The sandbox of a call, without creating one.
    pub(crate) async fn existing(self: &Arc<Self>, target: Target) -> Result<Sandbox, ToolError> {
        let none = || ToolError::new("there is no sandbox yet").hint("the first tool that needs one creates it");
        match target {
            Target::Sandbox(id) => self.find_by_id(&id).await,
            Target::Session(name) => self.held_session(&name).ok_or_else(none),
            Target::Default => match &self.config.session {
                Some(name) => self.held_session(name).ok_or_else(none),
                None => self.held_own().ok_or_else(none),
            },
        }
    }

    async fn own(self: &Arc<Self>) -> Result<Sandbox, ToolError> {
        if let Some(sandbox) = self.held_own() {
            return Ok(sandbox);
        }
        if let Some(lost) = self.state().lost.take() {
            return Err(ToolError::new(format!("sandbox {lost} has ended, with its files, processes and variables"))
                .hint("the next call gets a new sandbox"));
        }
        self.create(Wanted { is_own: true, ..Wanted::default() }).await
    }

    async fn open_session(self: &Arc<Self>, name: String) -> Result<Sandbox, ToolError> {
        match self.held_session(&name) {
            Some(sandbox) => Ok(sandbox),
            None => self.create(Wanted { session: Some(name), ..Wanted::default() }).await,
        }
    }

    async fn find_by_id(&self, id: &str) -> Result<Sandbox, ToolError> {
        let unknown = || {
            ToolError::new(format!("sandbox {id} is none of this client's"))
                .hint("list_sandboxes shows them; create_sandbox makes another one")
        };
        let id: SandboxId = id.parse().map_err(|_| unknown())?;
        if let Some(sandbox) = self.state().held.get(&id).map(|held| held.sandbox.clone()) {
            return Ok(sandbox);
        }
        if !self.config.all_sandboxes {
            return Err(unknown());
        }
        let (sandbox, _) = self.client().attach(&id).await?;
        self.hold(sandbox.clone(), Lasting::Foreign);
        self.note().await;
        Ok(sandbox)
    }

    /// Creates a sandbox. It is known even if nobody waits for it any more, so that it doesn't stay when the client leaves.
    pub(crate) async fn create(self: &Arc<Self>, wanted: Wanted) -> Result<Sandbox, ToolError> {
        let this = Arc::clone(self);
        let created = self.tasks.spawn(async move { this.create_now(wanted).await });
        created.await.unwrap_or_else(|_| Err(ToolError::cancelled()))
    }

    async fn create_now(&self, wanted: Wanted) -> Result<Sandbox, ToolError> {
        let _creating = self.creating.lock().await;
        let existing = match &wanted.session {
            Some(name) => self.held_session(name),
            None => wanted.is_own.then(|| self.held_own()).flatten(),
        };
        if let Some(sandbox) = existing {
            return Ok(sandbox);
        }
        self.check_room(1)?;
        let lasting = wanted.session.clone().map_or(Lasting::No, Lasting::Session);
        let new = self.new_sandbox(&wanted);
        let template = new.template.clone();
        let sandbox = match self.client().create(new).await {
            Err(ApiError::NotFound { message }) => {
                return Err(ToolError::new(format!("no sandbox of template {template}: {message}"))
                    .hint("use another template; the user can build one with `isopod template build`"));
            }
            created => created?,
        };
        self.hold(sandbox.clone(), lasting);
        if wanted.is_own {
            self.state().own = Some(sandbox.id().clone());
        }
        self.note().await;
        Ok(sandbox)
    }

    fn new_sandbox(&self, wanted: &Wanted) -> NewSandbox {
        let template = wanted.template.as_ref().unwrap_or(&self.config.template);
        let mut new = NewSandbox::new(template).timeout(self.config.timeout);
        new.metadata.clone_from(&wanted.metadata);
        new.envs.clone_from(&wanted.envs);
        new.allow_internet_access = wanted.internet;
        match &wanted.session {
            // The server finds the session's sandbox, or creates it.
            Some(name) => NewSandbox { auto_pause: true, ..new.metadata(SESSION_KEY, name) },
            None => new.metadata(MARK, self.config.transfers.mark()).idempotency_key(new_key()),
        }
    }

    /// Creates copies of a sandbox. They end with the client.
    pub(crate) async fn fork(
        self: &Arc<Self>,
        sandbox: Sandbox,
        count: u32,
    ) -> Result<Vec<Result<Sandbox, ApiError>>, ToolError> {
        let this = Arc::clone(self);
        let forked = self.tasks.spawn(async move {
            let _creating = this.creating.lock().await;
            this.check_room(count as usize)?;
            let copies = sandbox.fork(count, Some(this.config.timeout)).await?;
            for copy in copies.iter().flatten() {
                this.hold(copy.clone(), Lasting::No);
            }
            this.note().await;
            Ok(copies)
        });
        forked.await.unwrap_or_else(|_| Err(ToolError::cancelled()))
    }

    /// Resumes a paused sandbox.
    pub(crate) async fn resume(&self, id: &SandboxId) -> Result<Sandbox, ToolError> {
        let sandbox = self.client().connect(id, Some(self.config.timeout)).await?;
        if let Some(held) = self.state().held.get_mut(id) {
            held.sandbox = sandbox.clone();
        }
        Ok(sandbox)
    }

    /// Kills a sandbox. False if it had ended.
    pub(crate) async fn kill(&self, id: &SandboxId) -> Result<bool, ToolError> {
        let killed = self.client().kill(id).await?;
        self.forget(id);
        self.note().await;
        Ok(killed)
    }

    /// The client's sandboxes that exist, or all of the team.
    pub(crate) async fn list(&self) -> Result<Vec<(SandboxInfo, bool)>, ToolError> {
        let all = self.client().list(ListSandboxes::default()).collect().await?;
        let state = self.state();
        let is_own = |info: &SandboxInfo| match &self.config.session {
            Some(name) => self.is_session(&state, &info.id, name),
            None => state.own.as_ref() == Some(&info.id),
        };
        let shown = all.into_iter().filter(|info| self.config.all_sandboxes || state.held.contains_key(&info.id));
        Ok(shown.map(|info| (info.clone(), is_own(&info))).collect())
    }

    fn is_session(&self, state: &State, id: &SandboxId, name: &str) -> bool {
        state.held.get(id).is_some_and(|held| held.lasting == Lasting::Session(name.to_owned()))
    }

    /// The sandboxes that the client has used.
    pub(crate) fn held(&self) -> Vec<Sandbox> {
        self.state().held.values().map(|held| held.sandbox.clone()).collect()
    }

    /// The error of a call to a sandbox, with the reason if the sandbox doesn't run.
    pub(crate) async fn explain(&self, error: GuestError, sandbox: &SandboxId) -> ToolError {
        if !matches!(error, GuestError::SandboxNotRunning { .. }) {
            return error.into();
        }
        match self.client().info(sandbox).await {
            Ok(detail) if detail.info.state == SandboxState::Paused => {
                ToolError::new(format!("sandbox {sandbox} is paused")).hint("resume_sandbox lets it go on")
            }
            Err(error) if error.is_not_found() => {
                self.forget(sandbox);
                self.note().await;
                ToolError::new(format!("sandbox {sandbox} has ended, with its files, processes and variables"))
                    .hint("a call without `sandbox` gets a new one")
            }
            _ => error.into(),
        }
    }

    /// Extends the lifetime of the client's sandboxes until it leaves.
    pub(crate) async fn keep_alive(self: Arc<Self>) {
        let pause = (self.config.timeout / 3).max(Duration::from_secs(1));
        loop {
            tokio::time::sleep(pause).await;
            let mine = |held: &&Held| held.lasting != Lasting::Foreign;
            let ids: Vec<_> = self.state().held.values().filter(mine).map(|held| held.sandbox.id().clone()).collect();
            for id in ids {
                if let Err(error) = self.extend(&id).await {
                    // A server that restarts is back before the sandbox ends.
                    tracing::warn!(%id, error = error_chain(&error), "could not extend the lifetime of a sandbox");
                }
            }
            // Shows that the client is still there.
            self.note().await;
        }
    }

    /// Nothing is made shorter, and what is paused stays so.
    async fn extend(&self, id: &SandboxId) -> Result<(), ApiError> {
        let info = match self.client().info(id).await {
            Ok(detail) => detail.info,
            Err(error) if error.is_not_found() => {
                self.note_loss(id);
                self.note().await;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let is_due = info.end_at < OffsetDateTime::now_utc() + self.config.timeout;
        if info.state == SandboxState::Running && is_due {
            self.client().set_timeout(id, self.config.timeout).await?;
        }
        Ok(())
    }

    /// Kills what is the client's own. Nothing is created any more.
    pub(crate) async fn close(&self) {
        self.state().is_closed = true;
        self.tasks.close();
        // What goes on longer is ended with its sandbox.
        let _ = tokio::time::timeout(STOP, self.tasks.wait()).await;
        let _creating = self.creating.lock().await;
        let mine = |held: &&Held| held.lasting == Lasting::No;
        let ids: Vec<_> = self.state().held.values().filter(mine).map(|held| held.sandbox.id().clone()).collect();
        join_all(ids.iter().map(|id| async move {
            if let Err(error) = self.client().kill(id).await {
                tracing::error!(%id, error = error_chain(&error), "could not kill a sandbox, which ends at its timeout");
            }
        }))
        .await;
    }

    fn check_room(&self, more: usize) -> Result<(), ToolError> {
        let state = self.state();
        if state.is_closed {
            return Err(ToolError::cancelled());
        }
        let count = state.held.values().filter(|held| held.lasting != Lasting::Foreign).count();
        match count + more <= self.config.max_sandboxes {
            true => Ok(()),
            false => Err(ToolError::new(format!(
                "this client may have {} sandboxes at the same time, and has {count}",
                self.config.max_sandboxes
            ))
            .hint("kill_sandbox ends one that is not needed any more")),
        }
    }

    fn hold(&self, sandbox: Sandbox, lasting: Lasting) {
        self.state().held.insert(sandbox.id().clone(), Held { sandbox, lasting });
    }

    fn forget(&self, id: &SandboxId) {
        let mut state = self.state();
        state.held.remove(id);
        if state.own.as_ref() == Some(id) {
            state.own = None;
        }
    }

    /// It ended while no call looked.
    fn note_loss(&self, id: &SandboxId) {
        if self.state().own.as_ref() == Some(id) {
            self.state().lost = Some(id.clone());
        }
        self.forget(id);
    }

    fn held_own(&self) -> Option<Sandbox> {
        let state = self.state();
        state.held.get(state.own.as_ref()?).map(|held| held.sandbox.clone())
    }

    fn held_session(&self, name: &str) -> Option<Sandbox> {
        let of_name = |held: &&Held| matches!(&held.lasting, Lasting::Session(session) if session == name);
        self.state().held.values().find(of_name).map(|held| held.sandbox.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unique on this machine, so that a create that is repeated makes one sandbox.
fn new_key() -> String {
    format!("mcp-{}", unique())
}

/// A word of letters and digits that no other call gets.
pub(crate) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("{}-{now}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
