//! Queries the bucket: when a name must be requested, and what is requested. `reconcile` handles the responses.
//!
//! A directory is listed completely if it fits into one page. In a bigger one, single names are requested individually.
//! While the store does not respond, what was known before stays in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;

use super::node::{Ino, Node, ROOT};
use super::reconcile::{Seen, View, is_symlink};
use super::{Attr, Change, FsError, Vfs};
use crate::attributes::Kind;
use crate::name;
use crate::object::{ListRequest, StoreError};

/// If listing a known directory again takes longer than this, its old state is used.
const RELIST_LIMIT: Duration = Duration::from_secs(2);
/// How long the store is left alone after it did not respond.
const STORE_REST: Duration = Duration::from_secs(3);
/// The maximum length of a symbolic link's target.
pub(super) const TARGET_MAX: u64 = 4095;

#[derive(Clone, Debug)]
pub struct DirEntry {
    pub ino: Ino,
    pub name: Vec<u8>,
    /// `None` if only the store knows them and was not asked yet.
    pub attr: Option<Attr>,
}

impl Vfs {
    /// The node with that name, as fresh as the settings require.
    pub(crate) async fn find(&self, parent: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
        if name.len() > name::NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        if self.is_fresh(parent, Some(name))? {
            self.list_ahead(parent)?;
        } else {
            self.list_directory(parent, false, self.settings.ttl).await?;
            if !self.is_fresh(parent, Some(name))? {
                self.ask_name(parent, name).await?;
            }
        }
        self.core().tree.child(parent, name)
    }

    /// All entries of a directory.
    pub async fn read_directory(self: &Arc<Self>, ino: Ino) -> Result<Vec<DirEntry>, FsError> {
        if !self.is_fresh(ino, None)? {
            self.list_directory(ino, true, self.settings.ttl).await?;
        }
        let core = self.core();
        let directory = core.tree.get(ino)?.directory().ok_or(FsError::NotDirectory)?;
        let mut entries = Vec::with_capacity(directory.children.len());
        let mut unknown = Vec::new();
        for (name, child) in &directory.children {
            let node = core.tree.get(*child)?;
            if !node.known && node.kind() != Kind::Directory {
                unknown.push(*child);
            }
            entries.push(DirEntry { ino: *child, name: name.clone(), attr: node.known.then(|| node.attr()) });
        }
        drop(core);
        self.learn_ahead(unknown);
        Ok(entries)
    }

    /// Reads attributes that were only guessed so far.
    pub(crate) async fn learn(&self, ino: Ino) -> Result<(), FsError> {
        let gate = {
            let core = self.core();
            let node = core.tree.get(ino)?;
            if node.known {
                return Ok(());
            }
            node.gate.clone()
        };
        let _turn = gate.lock().await;
        let key = {
            let core = self.core();
            let node = core.tree.get(ino)?;
            if node.known {
                return Ok(());
            }
            node.remote.as_ref().map_or_else(|| core.tree.object_key(ino), |remote| remote.key.clone())
        };
        let info = self.retry(|| self.store.head(&key)).await?;
        let Some(info) = info else { return self.learn_absence(ino) };
        let target = if is_symlink(&info) && info.size <= TARGET_MAX {
            Some(self.retry(|| self.store.get(&key, &info.tag, 0..info.size)).await?)
        } else {
            None
        };
        self.learned(ino, &info, target.map(|bytes| bytes.to_vec()))
    }

    /// Like `learn`, with one exception: while the store does not respond, a directory that was restored from the
    /// journal is shown with guessed attributes, so that local files below it can be reached.
    pub(crate) async fn learn_or_guess(&self, ino: Ino) -> Result<(), FsError> {
        if !self.is_put_back(ino)? {
            return self.learn(ino).await;
        }
        if self.store_rests() {
            return Ok(());
        }
        let learned = tokio::time::timeout(RELIST_LIMIT, self.learn(ino)).await.unwrap_or(Err(FsError::Deadline));
        match learned {
            Err(error) if is_passing(&error) => {
                tracing::warn!(ino, %error, "the store does not respond; showing a directory with guessed attributes");
                self.let_store_rest();
                Ok(())
            }
            learned => learned,
        }
    }

    /// Whether an earlier process knew the directory, and the store has not confirmed it since.
    pub(super) fn is_put_back(&self, ino: Ino) -> Result<bool, FsError> {
        let core = self.core();
        let node = core.tree.get(ino)?;
        let is_guess = !node.known && node.checked.is_none() && node.pending.is_none();
        Ok(is_guess && node.kind() == Kind::Directory)
    }

    /// Loads the whole tree below a directory, by listing all of it.
    pub(crate) async fn load_below(&self, ino: Ino) -> Result<(), FsError> {
        let (prefix, clock) = {
            let core = self.core();
            (core.tree.prefix(ino), core.tree.clock)
        };
        let (objects, _) = self.list_pages(&prefix, false, true).await?;
        let mut views: BTreeMap<String, View> = BTreeMap::new();
        let empty = || View { seen: BTreeMap::new(), marker: None, complete: true };
        views.insert(prefix.clone(), empty());
        for object in objects.objects {
            let Some(rest) = object.key.strip_prefix(&prefix) else { continue };
            let mut above = prefix.clone();
            let mut parts = rest.split('/').peekable();
            while let Some(part) = parts.next() {
                let view = views.entry(above.clone()).or_insert_with(empty);
                match (part.is_empty(), parts.peek().is_some()) {
                    (true, false) => view.marker = Some(object.clone()),
                    (true, true) => break,
                    (false, true) => drop(name::decode(part).map(|name| view.seen.insert(name, Seen::Prefix))),
                    (false, false) => {
                        if let Some(name) = name::decode(part) {
                            view.seen.entry(name).or_insert_with(|| Seen::Object(object.clone()));
                        }
                    }
                }
                above = format!("{above}{part}/");
            }
        }
        let mut changes = Vec::new();
        let mut core = self.core();
        // Parents come first, because a prefix sorts before the keys that start with it.
        for (prefix, view) in views {
            let at = if prefix.is_empty() { Some(ROOT) } else { core.tree.resolve(&prefix) };
            if let Some(at) = at {
                changes.append(&mut self.reconcile(&mut core, at, view, clock)?);
            }
        }
        drop(core);
        self.forget_later(changes);
        Ok(())
    }

    /// Repeats a request as long as the store fails only temporarily.
    pub(crate) async fn retry<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let end = Instant::now() + self.settings.deadline;
        let mut pause = Duration::from_millis(20);
        loop {
            match ask().await {
                Err(error) if error.is_temporary() && Instant::now() + pause < end => {
                    tracing::debug!(%error, "retrying a request to the store");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// Whether the tree's knowledge about a name, or about all names, is still valid.
    fn is_fresh(&self, parent: Ino, name: Option<&[u8]>) -> Result<bool, FsError> {
        let core = self.core();
        let node = core.tree.get(parent)?;
        let directory = node.directory().ok_or(FsError::NotDirectory)?;
        if !node.linked || self.is_recent(directory.listed) {
            return Ok(true);
        }
        let Some(name) = name else { return Ok(false) };
        let Some(child) = directory.children.get(name) else { return Ok(false) };
        let child = core.tree.get(*child)?;
        Ok(child.pending.is_some() || self.is_recent(child.checked))
    }

    fn is_recent(&self, when: Option<Instant>) -> bool {
        when.is_some_and(|when| when.elapsed() < self.settings.ttl)
    }

    /// Lists a directory in steady use before its listing expires, so that no call has to wait for it.
    fn list_ahead(&self, ino: Ino) -> Result<(), FsError> {
        let early = self.settings.ttl / 2;
        {
            let mut core = self.core();
            let Some(directory) = core.tree.get_mut(ino)?.directory_mut() else { return Ok(()) };
            let due = directory.listed.is_some_and(|listed| listed.elapsed() > early);
            if !due || directory.big || directory.listing {
                return Ok(());
            }
            directory.listing = true;
        }
        let Some(vfs) = self.me.upgrade() else { return Ok(()) };
        tokio::spawn(async move {
            if let Err(error) = vfs.list_directory(ino, false, early).await {
                tracing::debug!(ino, %error, "could not list a directory ahead of time");
            }
            if let Ok(Some(directory)) = vfs.core().tree.get_mut(ino).map(Node::directory_mut) {
                directory.listing = false;
            }
        });
        Ok(())
    }

    /// Lists a directory unless it was listed within `age`. Only lists the first page of a big one, unless `whole` is
    /// set.
    async fn list_directory(&self, ino: Ino, whole: bool, age: Duration) -> Result<(), FsError> {
        let gate = self.core().tree.get(ino)?.gate.clone();
        let _turn = gate.lock().await;
        let (prefix, clock, known) = {
            let mut core = self.core();
            let (prefix, clock) = (core.tree.prefix(ino), core.tree.clock);
            let directory = core.tree.get_mut(ino)?.directory_mut().ok_or(FsError::NotDirectory)?;
            let recent = directory.listed.is_some_and(|listed| listed.elapsed() < age);
            if recent || (directory.big && !whole) {
                return Ok(());
            }
            (prefix, clock, directory.listed.is_some())
        };
        if known && self.store_rests() {
            return self.believe_listing(ino);
        }
        let asked = self.list_pages(&prefix, true, whole);
        let answer = if known {
            tokio::time::timeout(RELIST_LIMIT, asked).await.unwrap_or(Err(FsError::Deadline))
        } else {
            asked.await
        };
        let (listing, complete) = match answer {
            Ok(answer) => answer,
            Err(error) if known && is_passing(&error) => {
                tracing::warn!(prefix, %error, "the store does not respond; using the last listing of the directory");
                self.let_store_rest();
                return self.believe_listing(ino);
            }
            Err(error) => return Err(error),
        };
        let view = View::new(&prefix, listing, complete);
        let mut core = self.core();
        if core.tree.prefix(ino) != prefix || !core.tree.get(ino)?.linked {
            // It was moved in the meantime. Then all of it is known, and the bucket does not show the new state yet.
            return Ok(());
        }
        let directory = core.tree.get_mut(ino)?.directory_mut().ok_or(FsError::NotDirectory)?;
        directory.big = !complete || directory.big;
        let changes = self.reconcile(&mut core, ino, view, clock)?;
        drop(core);
        self.forget_later(changes);
        Ok(())
    }

    async fn list_pages(&self, prefix: &str, shallow: bool, whole: bool) -> Result<(crate::Listing, bool), FsError> {
        let mut all = crate::Listing::default();
        let mut request = ListRequest { prefix: prefix.to_owned(), shallow, limit: None, after: None };
        loop {
            let page = self.retry(|| self.store.list(&request)).await?;
            all.objects.extend(page.objects);
            all.prefixes.extend(page.prefixes);
            match page.next {
                None => return Ok((all, true)),
                Some(_) if !whole => return Ok((all, false)),
                // Stop if a server sends us in circles.
                Some(next) if request.after.as_ref() == Some(&next) => {
                    return Err(StoreError::Garbled { what: "list" }.into());
                }
                Some(next) => request.after = Some(next),
            }
        }
    }

    /// Requests one name in a big directory.
    async fn ask_name(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let (prefix, clock) = {
            let core = self.core();
            (core.tree.prefix(parent), core.tree.clock)
        };
        let key = prefix.clone() + &name::encode(name);
        let below = ListRequest { prefix: format!("{key}/"), shallow: true, limit: Some(1), after: None };
        let object = self.retry(|| self.store.head(&key));
        let below = self.retry(|| self.store.list(&below));
        let (object, below) = futures::try_join!(object, below)?;
        let seen = if below.objects.is_empty() && below.prefixes.is_empty() {
            object.map(Seen::Object)
        } else {
            Some(Seen::Prefix)
        };
        let mut core = self.core();
        if core.tree.prefix(parent) != prefix || !core.tree.get(parent)?.linked {
            return Ok(());
        }
        let mut changes = Vec::new();
        match seen {
            Some(seen) => changes.append(&mut self.agree_on(&mut core, parent, name, seen, clock)?),
            None => changes.extend(self.agree_on_absence(&mut core, parent, name, clock)?),
        }
        drop(core);
        self.forget_later(changes);
        Ok(())
    }

    fn believe_listing(&self, ino: Ino) -> Result<(), FsError> {
        let mut core = self.core();
        if let Some(directory) = core.tree.get_mut(ino)?.directory_mut() {
            directory.listed = Some(Instant::now());
        }
        Ok(())
    }

    fn let_store_rest(&self) {
        *self.store_rest.lock().expect("no panic while held") = Some(Instant::now() + STORE_REST);
    }

    fn store_rests(&self) -> bool {
        self.store_rest.lock().expect("no panic while held").is_some_and(|until| until > Instant::now())
    }

    /// Tells all mounts about changes in the bucket. Nothing waits for it, because the changes are not recent anyway.
    pub(super) fn forget_later(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let done = Arc::new(tokio::sync::Semaphore::new(0));
        for watcher in self.others(0) {
            watcher.forget(&changes, &done);
        }
    }

    /// A program that lists a directory will ask for attributes next.
    fn learn_ahead(self: &Arc<Self>, unknown: Vec<Ino>) {
        const MAX_CONCURRENT: usize = 32;
        if unknown.is_empty() {
            return;
        }
        let vfs = self.clone();
        tokio::spawn(async move {
            let all = futures::stream::iter(unknown).for_each_concurrent(MAX_CONCURRENT, |ino| {
                let vfs = &vfs;
                async move {
                    if let Err(error) = vfs.learn(ino).await {
                        tracing::debug!(ino, %error, "could not read attributes ahead of time");
                    }
                }
            });
            all.await;
        });
    }
}

fn is_passing(error: &FsError) -> bool {
    match error {
        FsError::Deadline => true,
        FsError::Store(error) => error.is_temporary() || matches!(error, StoreError::Denied { .. }),
        _ => false,
    }
}
