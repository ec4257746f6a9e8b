//! Shared code of the tests: a store that fails on demand, a small random number generator, and calls by path.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a different part, and a panic fails the test")]

pub(crate) mod install;
pub(crate) mod model;
pub(crate) mod process;
pub(crate) mod rclone;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isopod_storage::{
    Attr, Caller, Content, DirectoryStore, FsError, Ino, ListRequest, Listing, Metadata, ObjectInfo, ObjectStore, ROOT,
    Settings, StoreError, Vfs,
};

pub(crate) const ME: Caller = Caller { mount: 0, uid: 1000, gid: 1000 };

/// Settings without long waits.
pub(crate) fn quick(state: &Path) -> Settings {
    let mut settings = Settings::new(state);
    settings.upload_delay = Duration::from_millis(5);
    settings.deadline = Duration::from_secs(5);
    settings
}

/// Drops a file system without finishing anything, and waits until its state directory is free. Background tasks may be in
/// their last call, and whoever drops the last reference closes the files a moment later.
pub(crate) async fn crash(vfs: Arc<Vfs>, state: &Path) {
    let weak = Arc::downgrade(&vfs);
    drop(vfs);
    while weak.strong_count() > 0 || is_locked(state) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn is_locked(state: &Path) -> bool {
    let lock = std::fs::File::open(state.join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
}

/// A store that fails a percentage of all requests, some of them after having executed the request.
#[derive(Debug)]
pub(crate) struct Flaky {
    inner: DirectoryStore,
    percent: AtomicU32,
    random: AtomicU64,
    pub(crate) requests: AtomicU64,
    under_way: Arc<AtomicU64>,
}

impl Flaky {
    pub(crate) fn new(inner: DirectoryStore, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            inner,
            percent: AtomicU32::new(0),
            random: AtomicU64::new(seed | 1),
            requests: AtomicU64::new(0),
            under_way: Arc::default(),
        })
    }

    /// Waits until the server has executed all requests, including those of cancelled callers.
    pub(crate) async fn quiet(&self) {
        while self.under_way.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sends a request that is executed even if the caller is cancelled.
    async fn send<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> T {
        let under_way = self.under_way.clone();
        under_way.fetch_add(1, Ordering::SeqCst);
        let done = tokio::spawn(async move {
            let answer = request.await;
            under_way.fetch_sub(1, Ordering::SeqCst);
            answer
        });
        done.await.unwrap()
    }

    pub(crate) fn fail(&self, percent: u32) {
        self.percent.store(percent, Ordering::Relaxed);
    }

    fn dice(&self) -> u32 {
        let mut random = Random(self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
        (random.next() % 100) as u32
    }

    /// Fails before the request is executed.
    async fn before(&self) -> Result<(), StoreError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.dice() < self.percent.load(Ordering::Relaxed) {
            return Err(StoreError::Refused { what: "test", status: 503, code: "SlowDown".into() });
        }
        Ok(())
    }

    /// Fails although the request was executed, as if the response was lost.
    fn after<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if self.dice() < self.percent.load(Ordering::Relaxed) / 4 {
            return Err(StoreError::Unreachable { what: "test", reason: "the answer was lost".into() });
        }
        result
    }
}

#[async_trait::async_trait]
impl ObjectStore for Flaky {
    async fn list(&self, request: &ListRequest) -> Result<Listing, StoreError> {
        self.before().await?;
        self.inner.list(request).await
    }
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError> {
        self.before().await?;
        self.inner.head(key).await
    }
    async fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<bytes::Bytes, StoreError> {
        self.before().await?;
        self.inner.get(key, tag, range).await
    }
    async fn put(&self, key: &str, content: Content, metadata: &Metadata) -> Result<String, StoreError> {
        self.before().await?;
        let (inner, key, metadata) = (self.inner.clone(), key.to_owned(), metadata.clone());
        let done = self.send(async move { inner.put(&key, content, &metadata).await }).await;
        self.after(done)
    }
    async fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError> {
        self.before().await?;
        let (inner, from, to, metadata) = (self.inner.clone(), from.clone(), to.to_owned(), metadata.clone());
        let done = self.send(async move { inner.copy(&from, &to, &metadata).await }).await;
        self.after(done)
    }
    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.before().await?;
        let (inner, key) = (self.inner.clone(), key.to_owned());
        let done = self.send(async move { inner.delete(&key).await }).await;
        self.after(done)
    }
}

/// Whether to run the large cases too.
pub(crate) fn is_full_run() -> bool {
    std::env::var_os("ISOPOD_FULL").is_some()
}

/// Prints why a test is skipped.
#[expect(clippy::print_stderr, reason = "the person who runs the tests must know")]
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// Returns the same numbers for the same seed.
#[derive(Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

pub(crate) async fn resolve(vfs: &Vfs, path: &str) -> Result<Attr, FsError> {
    let mut attr = vfs.attr(ROOT).await?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        attr = vfs.lookup(attr.ino, part.as_bytes()).await?;
    }
    Ok(attr)
}

/// The directory of a path, and its last part.
pub(crate) async fn place<'a>(vfs: &Vfs, path: &'a str) -> Result<(Ino, &'a [u8]), FsError> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((resolve(vfs, above).await?.ino, name.as_bytes()))
}

pub(crate) async fn write_file(vfs: &Arc<Vfs>, path: &str, content: &[u8]) -> Result<(), FsError> {
    let (parent, name) = place(vfs, path).await?;
    let ino = match vfs.create(ME, parent, name, 0o644).await {
        Ok(attr) => attr.ino,
        Err(FsError::Exists) => {
            let ino = vfs.lookup(parent, name).await?.ino;
            vfs.open_file(ino, true, true).await?;
            ino
        }
        Err(error) => return Err(error),
    };
    let written = vfs.write(ME, ino, 0, content, false).await;
    vfs.close_file(ino, true)?;
    written.map(drop)
}

pub(crate) async fn read_file(vfs: &Arc<Vfs>, path: &str) -> Result<Vec<u8>, FsError> {
    let attr = resolve(vfs, path).await?;
    vfs.open_file(attr.ino, false, false).await?;
    let content = vfs.read(attr.ino, 0, usize::try_from(attr.size).unwrap() + 1).await;
    vfs.close_file(attr.ino, false)?;
    content
}

pub(crate) async fn make_directory(vfs: &Vfs, path: &str) -> Result<Attr, FsError> {
    let (parent, name) = place(vfs, path).await?;
    vfs.make_directory(ME, parent, name, 0o755).await
}

pub(crate) async fn names(vfs: &Arc<Vfs>, path: &str) -> Vec<String> {
    let ino = resolve(vfs, path).await.unwrap().ino;
    let entries = vfs.read_directory(ino).await.unwrap();
    entries.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
}

/// All objects of a bucket with their content.
pub(crate) async fn objects(store: &dyn ObjectStore) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut request = ListRequest::default();
    loop {
        let page = store.list(&request).await.unwrap();
        for object in page.objects {
            let bytes = store.get(&object.key, &object.tag, 0..object.size).await;
            found.insert(object.key.clone(), if object.size == 0 { Vec::new() } else { bytes.unwrap().to_vec() });
        }
        match page.next {
            Some(next) => request.after = Some(next),
            None => return found,
        }
    }
}
