//! Uploads local changes to the bucket, continuously and in the background.
//!
//! Several workers take the tasks that are due. A key has one request at a time. A key that is lent (see `vfs::tree`)
//! is not written before its bytes were copied to their new key. If nodes wait for each other in a cycle, one of them
//! is made local. Failed tasks are retried with growing pauses and never given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::attributes::Metadata;
use crate::object::{Content, ObjectInfo, StoreError};
use crate::vfs::{Body, Cache, Core, FsError, Ino, Record, Remote, Task, Vfs};

/// The delay before a task that waits for another one is checked again.
const RECHECK_DELAY: Duration = Duration::from_millis(10);
/// How often the number of spare files is checked.
const SPARES_EVERY: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// What the bucket does not have yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SyncStatus {
    /// The entries to upload, move or mark.
    pub uploads: usize,
    /// The number of their bytes that exist only here.
    pub bytes: u64,
    pub deletions: usize,
    /// How long the oldest of them has been waiting.
    pub oldest: Option<Duration>,
    /// An error that will be retried.
    pub error: Option<String>,
}

/// The workers. They end when this is dropped. Unfinished tasks are done after the next start.
#[derive(Debug)]
pub struct Sync {
    vfs: Arc<Vfs>,
    workers: JoinSet<()>,
}

impl Sync {
    /// Starts the workers. Must be called inside a Tokio runtime.
    pub fn start(vfs: Arc<Vfs>) -> Self {
        let mut workers = JoinSet::new();
        for _ in 0..vfs.settings.parallel_uploads.max(1) {
            workers.spawn(work(vfs.clone()));
        }
        workers.spawn(keep_spares(vfs.cache()));
        Self { vfs, workers }
    }

    /// Stops the workers at once. Unfinished tasks are done after the next start.
    pub async fn stop(mut self) {
        self.workers.shutdown().await;
    }

    /// Waits until the bucket has everything that was changed before this call, including changes of files that are
    /// still open.
    pub async fn settle(&self) {
        let mut open = self.vfs.hurry();
        loop {
            let settled = self.vfs.settled.notified();
            open = self.vfs.still_open(open);
            if open.is_empty() {
                return;
            }
            // The last worker to finish wakes us. The timeout covers failures in between.
            let _ = tokio::time::timeout(Duration::from_millis(200), settled).await;
        }
    }
}

impl Vfs {
    /// What the bucket does not have yet.
    pub fn sync_status(&self) -> SyncStatus {
        let core = self.core();
        let mut status = SyncStatus { deletions: core.tree.deletions.len(), ..SyncStatus::default() };
        for node in core.tree.nodes() {
            let Some(pending) = &node.pending else { continue };
            status.uploads += 1;
            status.bytes += if pending.content { node.weight() } else { 0 };
            status.oldest = status.oldest.max(Some(pending.since.elapsed()));
            status.error = status.error.take().or_else(|| pending.error.clone());
        }
        status
    }

    /// Makes all tasks due now, and returns them.
    fn hurry(&self) -> Vec<Awaited> {
        let mut core = self.core();
        let now = Instant::now();
        // Pretend that they have waited long enough, so that open files are uploaded too.
        let long_ago = now.checked_sub(self.settings.upload_limit).unwrap_or(now);
        let tasks: Vec<Task> = core.queue.iter().map(|(_, task)| task.clone()).collect();
        core.queue = tasks.into_iter().map(|task| (now, task)).collect();
        let pending: Vec<Ino> = core.tree.nodes().filter(|node| node.pending.is_some()).map(|node| node.ino).collect();
        for ino in pending {
            if let Some(pending) = core.tree.get_mut(ino).ok().and_then(|node| node.pending.as_mut()) {
                pending.due = now;
                pending.since = pending.since.min(long_ago);
            }
        }
        core.tree.deletions.values_mut().for_each(|deletion| deletion.due = now);
        let uploads = core.tree.nodes().filter(|node| node.pending.is_some());
        let mut awaited: Vec<Awaited> = uploads.map(|node| Awaited::Upload(node.ino, node.version)).collect();
        awaited.extend(core.tree.deletions.keys().cloned().map(Awaited::Deletion));
        drop(core);
        self.work.notify_waiters();
        awaited
    }

    /// The tasks that are not done yet.
    fn still_open(&self, awaited: Vec<Awaited>) -> Vec<Awaited> {
        let core = self.core();
        let is_open = |awaited: &Awaited| match awaited {
            Awaited::Upload(ino, version) => {
                core.tree.get(*ino).is_ok_and(|node| node.pending.is_some() && node.uploaded < *version)
            }
            Awaited::Deletion(key) => core.tree.deletions.contains_key(key),
        };
        awaited.into_iter().filter(is_open).collect()
    }
}

/// A task that a caller waits for.
enum Awaited {
    Upload(Ino, u64),
    Deletion(String),
}

async fn work(vfs: Arc<Vfs>) {
    loop {
        let woken = vfs.work.notified();
        let next = take_due(&vfs);
        match next {
            Next::Now(Task::Upload(ino)) => upload(&vfs, ino).await,
            Next::Now(Task::Delete(key)) => delete(&vfs, key).await,
            Next::At(due) => drop(tokio::time::timeout_at(due.into(), woken).await),
            Next::Nothing => woken.await,
        }
    }
}

/// Creates empty files in advance, for programs that will create files.
async fn keep_spares(cache: Arc<Cache>) {
    loop {
        if cache.missing_spares() > 0 {
            let maker = cache.clone();
            let made = tokio::task::spawn_blocking(move || maker.make_spares()).await;
            if matches!(made, Ok(Ok(()))) && cache.missing_spares() > 0 {
                continue;
            }
        }
        tokio::time::sleep(SPARES_EVERY).await;
    }
}

enum Next {
    Now(Task),
    At(Instant),
    Nothing,
}

fn take_due(vfs: &Vfs) -> Next {
    let mut core = vfs.core();
    let Some((due, _)) = core.queue.first() else { return Next::Nothing };
    if *due > Instant::now() {
        return Next::At(*due);
    }
    let Some((_, task)) = core.queue.pop_first() else { return Next::Nothing };
    if core.queue.first().is_some_and(|(due, _)| *due <= Instant::now()) {
        vfs.work.notify_one();
    }
    Next::Now(task)
}

/// What to do for a node, decided under the lock.
enum Plan {
    Nothing,
    Later(Instant),
    Learn,
    Localize(Ino),
    Run(Box<Job>),
}

struct Job {
    version: u64,
    key: String,
    source: Option<ObjectInfo>,
    content: Option<Content>,
    metadata: Metadata,
    size: u64,
}

async fn upload(vfs: &Arc<Vfs>, ino: Ino) {
    let plan = match plan(vfs, ino) {
        Ok(plan) => plan,
        Err(error) => return put_off(vfs, ino, &error.to_string()),
    };
    match plan {
        Plan::Nothing => vfs.settled.notify_waiters(),
        Plan::Later(due) => {
            vfs.core().queue.insert((due, Task::Upload(ino)));
        }
        Plan::Learn => match vfs.learn(ino).await {
            Ok(()) => again(vfs, ino, Duration::ZERO),
            Err(error) => put_off(vfs, ino, &error.to_string()),
        },
        Plan::Localize(other) => {
            let done = make_local(vfs, other).await;
            if let Err(error) = done {
                tracing::warn!(%error, "could not read a file that has to be moved; will retry");
            }
            again(vfs, ino, RECHECK_DELAY);
        }
        Plan::Run(job) => {
            let result = run(vfs, &job).await;
            finish(vfs, ino, &job, result).await;
        }
    }
}

fn plan(vfs: &Vfs, ino: Ino) -> Result<Plan, FsError> {
    let now = Instant::now();
    let mut core = vfs.core();
    let Ok(node) = core.tree.get(ino) else { return Ok(Plan::Nothing) };
    let (true, Some(pending)) = (node.linked, &node.pending) else { return Ok(Plan::Nothing) };
    if pending.due > now && now < pending.since + vfs.settings.upload_limit {
        return Ok(Plan::Later(pending.due));
    }
    if node.writers > 0 && pending.content && now < pending.since + vfs.settings.upload_limit {
        return Ok(Plan::Later(now + vfs.settings.upload_delay.max(RECHECK_DELAY)));
    }
    if !node.known {
        return Ok(Plan::Learn);
    }
    let key = core.tree.object_key(ino);
    if let Some(borrower) = core.tree.borrower(&key, Some(ino)) {
        // The node that needs the object at our key goes first, unless it waits for another node itself or has been
        // removed.
        let its_key = core.tree.object_key(borrower);
        let stays = !core.tree.get(borrower)?.linked;
        if stays || core.tree.borrower(&its_key, Some(borrower)).is_some() {
            return Ok(Plan::Localize(borrower));
        }
        return Ok(Plan::Later(now + RECHECK_DELAY));
    }
    let job = job(vfs, &mut core, ino, key)?;
    let keys = [Some(&job.key), job.source.as_ref().map(|source| &source.key)];
    if keys.iter().flatten().any(|key| core.busy.contains(*key)) {
        return Ok(Plan::Later(now + RECHECK_DELAY));
    }
    let keys: Vec<String> = keys.into_iter().flatten().cloned().collect();
    core.busy.extend(keys);
    core.tree.get_mut(ino)?.attempted = Some(job.key.clone());
    Ok(Plan::Run(Box::new(job)))
}

fn job(vfs: &Vfs, core: &mut Core, ino: Ino, key: String) -> Result<Job, FsError> {
    let node = core.tree.get(ino)?;
    let metadata = node.attributes.to_metadata(node.kind());
    let version = node.version;
    let changed = node.pending.as_ref().is_some_and(|pending| pending.content);
    let mut job = Job { version, key, source: None, content: None, metadata, size: node.weight() };
    match &node.body {
        Body::Directory(_) => job.content = Some(Content::Bytes(Default::default())),
        Body::Symlink(target) => job.content = Some(Content::Bytes(target.clone().into())),
        Body::File(file) => match (&node.remote, changed) {
            (Some(remote), false) => job.source = Some(remote.as_object()),
            (None, false) if !file.local => return Err(FsError::Stale),
            _ => job.content = Some(Content::File(vfs.local_file(core, ino)?, job.size)),
        },
    }
    Ok(job)
}

async fn run(vfs: &Vfs, job: &Job) -> Result<String, StoreError> {
    match (&job.content, &job.source) {
        (Some(content), _) => vfs.store.put(&job.key, content.clone(), &job.metadata).await,
        (None, Some(source)) => vfs.store.copy(source, &job.key, &job.metadata).await,
        (None, None) => Err(StoreError::NotFound(job.key.clone())),
    }
}

async fn finish(vfs: &Arc<Vfs>, ino: Ino, job: &Job, result: Result<String, StoreError>) {
    {
        let mut core = vfs.core();
        core.busy.remove(&job.key);
        if let Some(source) = &job.source {
            core.busy.remove(&source.key);
        }
    }
    match result {
        Ok(tag) => {
            let remote = Remote { key: job.key.clone(), tag, size: job.size };
            if let Err(error) = uploaded(vfs, ino, job, remote) {
                tracing::error!(key = job.key, %error, "could not record an upload in the journal");
                again(vfs, ino, MAX_PAUSE);
            }
        }
        Err(StoreError::Changed(_) | StoreError::NotFound(_)) if job.source.is_some() => {
            source_is_gone(vfs, ino, job).await;
        }
        Err(StoreError::Conflict(_)) => {
            // The object in the way is deleted when it is due, and must not wait for us.
            let moved = if job.source.is_some() { make_local(vfs, ino).await } else { Ok(()) };
            match moved {
                Ok(()) => again(vfs, ino, RECHECK_DELAY),
                Err(error) => put_off(vfs, ino, &error.to_string()),
            }
        }
        Err(error) => {
            tracing::warn!(key = job.key, %error, "an upload failed and will be retried");
            put_off(vfs, ino, &error.to_string());
        }
    }
}

/// Records that the bucket has the upload, and plans what is still to be done because of changes in the meantime.
fn uploaded(vfs: &Vfs, ino: Ino, job: &Job, remote: Remote) -> Result<(), FsError> {
    tracing::trace!(ino, ?remote, "uploaded");
    let mut core = vfs.core();
    core.tree.clock += 1;
    let clock = core.tree.clock;
    let alive = core.tree.get(ino).is_ok_and(|node| node.linked);
    if !alive {
        // The file was removed during the upload. If another node is at that key now, its upload overrides this
        // deletion.
        let deletion = core.plan_deletion(job.key.clone(), Duration::ZERO);
        core.commit(&[deletion])?;
        vfs.work.notify_one();
        return Ok(());
    }
    let mut records = Vec::new();
    let old = core.tree.get(ino)?.remote.as_ref().map(|remote| remote.key.clone());
    core.tree.set_remote(ino, Some(remote))?;
    if let Some(old) = old.filter(|old| *old != job.key) {
        records.push(core.plan_deletion(old, Duration::ZERO));
    }
    let stands_there = core.tree.object_key(ino) == job.key;
    let node = core.tree.get_mut(ino)?;
    node.touched = clock;
    node.attempted = node.attempted.take().filter(|key| *key != job.key);
    let current = node.version == job.version && stands_there;
    if stands_there {
        node.uploaded = job.version;
    }
    if let (true, Some(pending)) = (current || stands_there, &mut node.pending) {
        pending.attempts = 0;
        pending.error = None;
    }
    if current {
        node.pending = None;
        node.checked = Some(Instant::now());
        let open = node.opens > 0;
        records.push(Record::Settled(ino));
        if open {
            records.push(core.opened_record(ino)?);
        }
        vfs.note_cached(job.size);
    } else {
        // The file was changed or moved in the meantime. If it was moved, the object is still at its old key.
        if !stands_there {
            records.extend(vfs.leave_key(&mut core, ino)?);
        }
        records.push(core.record(ino)?);
        let due = Instant::now() + vfs.settings.upload_delay;
        core.queue.insert((due, Task::Upload(ino)));
    }
    if stands_there && core.tree.deletions.remove(&job.key).is_some() {
        records.push(Record::DeletionSettled(job.key.clone()));
    }
    core.commit(&records)?;
    drop(core);
    vfs.settled.notify_waiters();
    vfs.work.notify_one();
    Ok(())
}

/// Handles a source object of a copy that is missing or was replaced.
async fn source_is_gone(vfs: &Arc<Vfs>, ino: Ino, job: &Job) {
    let Some(source) = &job.source else { return };
    let found = match vfs.store.head(&source.key).await {
        Ok(found) => found,
        Err(error) => return put_off(vfs, ino, &error.to_string()),
    };
    let mut core = vfs.core();
    let local = core.tree.get(ino).is_ok_and(|node| node.file().is_some_and(|file| file.local));
    let noted = match found {
        // The bytes are here, so upload them as if they were new.
        _ if local => vfs.begin_change(&mut core, ino),
        Some(object) => {
            let remote = Remote { key: object.key, tag: object.tag, size: object.size };
            core.tree.resize(ino, remote.size).and_then(|()| core.tree.set_remote(ino, Some(remote)))
        }
        None => {
            tracing::warn!(key = source.key, "a file was deleted in the bucket before it could be moved there");
            core.remove(ino, Duration::ZERO).and_then(|records| core.commit(&records))
        }
    };
    drop(core);
    match noted {
        Ok(()) => again(vfs, ino, RECHECK_DELAY),
        Err(error) => put_off(vfs, ino, &error.to_string()),
    }
}

/// Breaks a cycle: downloads the bytes of one file, so that its object may be overwritten.
async fn make_local(vfs: &Arc<Vfs>, ino: Ino) -> Result<(), FsError> {
    vfs.localize(ino).await?;
    let mut core = vfs.core();
    if core.tree.get(ino)?.file().is_some_and(|file| file.local) {
        vfs.begin_change(&mut core, ino)?;
        core.tree.lend(ino);
    }
    Ok(())
}

async fn delete(vfs: &Arc<Vfs>, key: String) {
    {
        let mut core = vfs.core();
        let now = Instant::now();
        let Some(deletion) = core.tree.deletions.get(&key) else { return vfs.settled.notify_waiters() };
        let due = deletion.due;
        let taken = core.tree.resolve(&key).and_then(|ino| core.tree.get(ino).ok());
        if taken.is_some_and(|node| node.pending.is_none()) {
            // Another node is at that key now, and the object belongs to it.
            core.tree.deletions.remove(&key);
            let _ = core.commit(&[Record::DeletionSettled(key)]);
            return vfs.settled.notify_waiters();
        }
        if due > now {
            core.queue.insert((due, Task::Delete(key)));
            return;
        }
        if taken.is_some()
            || (key.ends_with('/') && core.tree.hides_below(&key))
            || core.tree.borrower(&key, None).is_some()
            || core.busy.contains(&key)
        {
            core.queue.insert((now + RECHECK_DELAY, Task::Delete(key)));
            return;
        }
        core.busy.insert(key.clone());
    }
    let result = vfs.store.delete(&key).await;
    let mut core = vfs.core();
    core.busy.remove(&key);
    core.tree.clock += 1;
    match result {
        Ok(()) => {
            tracing::trace!(key, "deleted");
            core.tree.deletions.remove(&key);
            core.tree.note_deletion(&key, vfs.settings.deadline * 2);
            if let Err(error) = core.commit(&[Record::DeletionSettled(key)]) {
                tracing::error!(%error, "could not record a deletion in the journal");
            }
        }
        Err(error) => {
            tracing::warn!(key, %error, "a deletion failed and will be retried");
            if let Some(deletion) = core.tree.deletions.get_mut(&key) {
                deletion.attempts += 1;
                deletion.due = Instant::now() + pause(deletion.attempts);
                let due = deletion.due;
                core.queue.insert((due, Task::Delete(key)));
            }
        }
    }
    drop(core);
    vfs.settled.notify_waiters();
}

fn again(vfs: &Vfs, ino: Ino, delay: Duration) {
    vfs.core().queue.insert((Instant::now() + delay, Task::Upload(ino)));
    vfs.work.notify_one();
}

fn put_off(vfs: &Vfs, ino: Ino, reason: &str) {
    let mut core = vfs.core();
    let Ok(node) = core.tree.get_mut(ino) else { return };
    let Some(pending) = &mut node.pending else { return };
    pending.attempts += 1;
    pending.error = Some(reason.to_owned());
    let due = Instant::now() + pause(pending.attempts);
    pending.due = due;
    core.queue.insert((due, Task::Upload(ino)));
    drop(core);
    vfs.work.notify_one();
}

fn pause(attempts: u32) -> Duration {
    (Duration::from_millis(100) * 2_u32.saturating_pow(attempts.min(10))).min(MAX_PAUSE)
}

impl Remote {
    fn as_object(&self) -> ObjectInfo {
        ObjectInfo {
            key: self.key.clone(),
            size: self.size,
            tag: self.tag.clone(),
            modified: std::time::SystemTime::UNIX_EPOCH,
            metadata: None,
        }
    }
}
