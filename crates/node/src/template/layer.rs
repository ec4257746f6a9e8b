//! Committed layers: `<id>/{root,usr,in-use}`, and `below` if it needs another, in the templates directory, which several state directories may share. A
//! visible layer is complete. Every [`Layer`] holds a shared lock on `in-use`. A layer is removed only under an
//! exclusive lock, and only if no record names a sandbox that uses it.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_disk::remove_tree;
use isopod_image::unpack::{Bounds, Quota, QuotaError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::manifest::Manifest;
use crate::layer_users::LayerUsers;

const IN_USE: &str = "in-use";
/// How often to check whether another process is done with the same layer.
const POLL: Duration = Duration::from_millis(10);
/// The prefix of what is being created or removed.
const TEMPORARY: &str = ".tmp-";
/// After that prefix: a layer that was replaced by a newer one.
const OLD: &str = "old-";

/// The file in a layer's directory that names the layer below it, if the layer is of no use without that one.
const BELOW: &str = "below";
/// How many layers may depend on each other in this way.
const MAX_BELOW: usize = 8;

/// Why a layer is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    #[error("layer {0} does not exist")]
    Missing(String),
    #[error("stopped waiting for a layer that another process creates")]
    Stopped(#[source] QuotaError),
    #[error("could not {action} {path}")]
    Store {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl LayerError {
    pub(super) fn on(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Store { action, path: path.to_owned(), source }
    }
}

/// A locked layer.
#[derive(Debug)]
pub(crate) struct Layer {
    id: String,
    root: PathBuf,
    _held: File,
}

impl Layer {
    /// Opens an existing layer and locks it.
    pub(crate) fn open(templates: &Path, id: &str) -> Result<Self, LayerError> {
        let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        let missing = || LayerError::Missing(id.to_owned());
        if !is_name || id.starts_with('.') {
            return Err(missing());
        }
        let directory = templates.join(id);
        let marker = directory.join(IN_USE);
        let held = match OpenOptions::new().read(true).write(true).open(&marker) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            other => other.map_err(LayerError::on("open", &marker))?,
        };
        flock(&held, FlockOperation::LockShared).map_err(|error| LayerError::on("lock", &marker)(error.into()))?;
        // It may have been replaced while we waited. Then the lock is on a file that no longer has a name.
        if !is_same(&held, &marker) {
            return Err(missing());
        }
        Ok(Self { id: id.to_owned(), root: directory.join("root"), _held: held })
    }

    /// Opens a layer and those that it depends on, topmost first.
    pub(crate) fn open_stack(templates: &Path, id: &str) -> Result<Vec<Arc<Self>>, LayerError> {
        let mut stack = vec![Arc::new(Self::open(templates, id)?)];
        for below in layers_below(templates, id)? {
            stack.push(Arc::new(Self::open(templates, &below)?));
        }
        Ok(stack)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    #[cfg(test)]
    pub(crate) fn usr(&self) -> PathBuf {
        self.root.with_file_name("usr")
    }
}

/// The layers that a layer depends on, the nearest first.
pub(super) fn layers_below(templates: &Path, id: &str) -> Result<Vec<String>, LayerError> {
    let mut below = Vec::new();
    let mut next = id.to_owned();
    while below.len() < MAX_BELOW {
        let path = templates.join(&next).join(BELOW);
        next = match fs::read_to_string(&path) {
            Ok(name) => name,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(LayerError::on("read", &path)(error)),
        };
        below.push(next.clone());
    }
    Ok(below)
}

/// The right to create the layer with this id. Others wait for it and then find the layer.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) directory: PathBuf,
    _lock: File,
}

/// Waits until no other process creates this layer, or until the quota is stopped. The directory to fill is new and
/// empty.
pub(super) fn begin_making(templates: &Path, id: &str, quota: &Quota) -> Result<Making, LayerError> {
    // Layers contain set-uid programs, which only sandboxes may run.
    let private = DirBuilder::new().recursive(true).mode(0o700).create(templates);
    private.map_err(LayerError::on("create", templates))?;
    let path = lock_path(templates, id);
    let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let lock = lock.map_err(LayerError::on("open", &path))?;
    while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK && error != Errno::INTR {
            return Err(LayerError::on("lock", &path)(error.into()));
        }
        quota.check().map_err(LayerError::Stopped)?;
        std::thread::sleep(POLL);
    }
    let directory = templates.join(format!("{TEMPORARY}{id}"));
    remove_tree(&directory).map_err(LayerError::on("remove", &directory))?;
    fs::create_dir(&directory).map_err(LayerError::on("create", &directory))?;
    Ok(Making { directory, _lock: lock })
}

impl Making {
    /// Notes that the layer is of no use without another one.
    pub(super) fn set_below(&self, below: &str) -> Result<(), LayerError> {
        let path = self.directory.join(BELOW);
        fs::write(&path, below).map_err(LayerError::on("write", &path))
    }

    /// Publishes the layer. Replaces an older layer of that name.
    pub(super) fn publish(self, templates: &Path, id: &str) -> Result<Layer, LayerError> {
        let marker = self.directory.join(IN_USE);
        File::create(&marker).map_err(LayerError::on("create", &marker))?;
        let path = templates.join(id);
        if path.exists() {
            remove(templates, id)?;
        }
        fs::rename(&self.directory, &path).map_err(LayerError::on("publish", &path))?;
        Layer::open(templates, id)
    }

    /// As [`Making::publish`], but takes an existing layer instead of replacing it.
    pub(super) fn publish_or_take(self, templates: &Path, id: &str) -> Result<Layer, LayerError> {
        match Layer::open(templates, id) {
            Ok(layer) => {
                self.give_up();
                Ok(layer)
            }
            Err(_) => self.publish(templates, id),
        }
    }

    pub(super) fn give_up(self) {
        // The next attempt at this layer removes what is left.
        let _ = remove_tree(&self.directory);
    }
}

/// Creates a layer with a whole system. `fill` fills its root. If another process has created the layer in the
/// meantime, takes that.
pub(crate) fn make_layer(
    templates: &Path,
    id: &str,
    quota: &Quota,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<Layer, LayerError> {
    let making = begin_making(templates, id, quota)?;
    let (root, usr) = (making.directory.join("root"), making.directory.join("usr"));
    let make = |path: &Path| DirBuilder::new().mode(0o755).create(path);
    let filled = make(&root).and_then(|()| make(&usr)).and_then(|()| fill(&root));
    match filled {
        Ok(()) => making.publish_or_take(templates, id),
        Err(error) => {
            let failed = LayerError::on("fill", &root)(error);
            making.give_up();
            Err(failed)
        }
    }
}

/// A temporary directory. What a killed process leaves is removed like an unfinished layer.
#[derive(Debug)]
pub(crate) struct Scratch {
    making: Option<Making>,
    lock: PathBuf,
}

impl Scratch {
    /// Creates a directory with a name of its own that begins with this.
    pub(crate) fn unique(templates: &Path, prefix: &str) -> Result<Self, LayerError> {
        let mut bytes = [0; 12];
        getrandom::fill(&mut bytes).expect("the kernel provides random numbers after boot");
        Self::make(templates, &format!("{prefix}-{}", hex::encode(bytes)))
    }

    fn make(templates: &Path, name: &str) -> Result<Self, LayerError> {
        // Nobody else uses this name, so there is no wait.
        let making = begin_making(templates, name, &Quota::new(Bounds::default()))?;
        Ok(Self { making: Some(making), lock: lock_path(templates, name) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.making.as_ref().map_or(Path::new(""), |making| &making.directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(making) = self.making.take() {
            let _ = fs::remove_file(&self.lock);
            making.give_up();
        }
    }
}

/// Removes a layer that no process holds and no sandbox uses.
fn remove(templates: &Path, id: &str) -> Result<(), LayerError> {
    let path = templates.join(id);
    let marker = path.join(IN_USE);
    let held = OpenOptions::new().create(true).append(true).open(&marker).map_err(LayerError::on("open", &marker))?;
    let in_use = |error| LayerError::on("remove, because sandboxes use it,", &path)(error);
    flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|error| in_use(error.into()))?;
    if has_sandboxes(templates, id).map_err(LayerError::on("find out whether sandboxes use", &path))? {
        return Err(in_use(io::ErrorKind::ResourceBusy.into()));
    }
    let doomed = templates.join(format!("{TEMPORARY}{OLD}{id}"));
    fs::rename(&path, &doomed).map_err(LayerError::on("move away", &path))?;
    remove_tree(&doomed).map_err(LayerError::on("remove", &doomed))
}

/// Whether sandboxes of any state directory use it, with or without a server.
fn has_sandboxes(templates: &Path, id: &str) -> io::Result<bool> {
    LayerUsers::of_templates(templates)?.have_layer(templates, id)
}

fn is_same(file: &File, path: &Path) -> bool {
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), path.metadata()), (Ok(held), Ok(named)) if identity(&held) == identity(&named))
}

/// Removes what killed builds have left. Running builds hold their lock.
pub fn remove_unfinished(templates: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(templates)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY)) else { continue };
        let id = id.strip_prefix(OLD).unwrap_or(id);
        let lock = OpenOptions::new().create(true).append(true).open(lock_path(templates, id))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_tree(&entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The lock of whoever creates this layer.
fn lock_path(templates: &Path, id: &str) -> PathBuf {
    templates.join(format!(".{id}.lock"))
}

/// Public information about a layer.
#[derive(Clone, Debug)]
pub struct LayerInfo {
    pub id: String,
    /// Whether a process holds it, or a sandbox or a built template uses it.
    pub in_use: bool,
}

/// The sorted names of all layers.
pub fn layer_names(templates: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(templates) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok())).collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<String> = names.into_iter().flatten().collect();
    names.retain(|id| templates.join(id).join(IN_USE).is_file());
    names.sort();
    Ok(names)
}

/// All layers, sorted by name.
///
/// # Errors Also if a record or the manifest of a template cannot be read, because it is then unknown which layers are
/// in use.
pub fn list_layers(templates: &Path) -> io::Result<Vec<LayerInfo>> {
    let names = layer_names(templates)?;
    let manifests = if templates.exists() { Manifest::load_all(templates)? } else { Vec::new() };
    let wanted: HashSet<String> = manifests.into_iter().flat_map(|kept| kept.template.layers).collect();
    let mut layers = Vec::new();
    for id in names {
        if let Ok(marker) = File::open(templates.join(&id).join(IN_USE)) {
            let is_held = flock(&marker, FlockOperation::NonBlockingLockExclusive).is_err();
            let in_use = is_held || wanted.contains(&id) || has_sandboxes(templates, &id)?;
            layers.push(LayerInfo { id, in_use });
        }
    }
    Ok(layers)
}

/// Removes a layer by its name.
///
/// # Errors If sandboxes use it, or if it does not exist.
pub fn remove_layer(templates: &Path, id: &str) -> io::Result<()> {
    if !templates.join(id).join(IN_USE).exists() {
        return Err(io::ErrorKind::NotFound.into());
    }
    remove(templates, id).map_err(|error| match error {
        LayerError::Store { source, .. } => source,
        LayerError::Missing(_) => io::ErrorKind::NotFound.into(),
        LayerError::Stopped(error) => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(templates: &Path, id: &str) -> Layer {
        let making = begin_making(templates, id, &Quota::new(Bounds::default())).unwrap();
        for part in ["root", "usr"] {
            fs::create_dir(making.directory.join(part)).unwrap();
        }
        making.publish(templates, id).unwrap()
    }

    #[test]
    fn a_layer_is_there_once_it_is_published_and_not_before() {
        let templates = tempfile::tempdir().unwrap();
        let making = begin_making(templates.path(), "a-1", &Quota::new(Bounds::default())).unwrap();
        assert!(matches!(Layer::open(templates.path(), "a-1"), Err(LayerError::Missing(_))));
        making.give_up();
        assert_eq!(make(templates.path(), "a-1").id(), "a-1");
        assert!(Layer::open(templates.path(), "a-1").is_ok());
    }

    /// An operator may keep templates on another disk.
    #[test]
    fn the_directory_of_templates_may_be_a_link() {
        let top = tempfile::tempdir().unwrap();
        let templates = top.path().join("templates");
        fs::create_dir(top.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &templates).unwrap();
        make(&templates, "a-1");
        begin_making(&templates, "a-2", &Quota::new(Bounds::default())).unwrap().give_up();
        assert!(!templates.join(".tmp-a-2").exists());
    }

    #[test]
    fn whoever_waits_for_a_layer_can_be_stopped() {
        let templates = tempfile::tempdir().unwrap();
        let _making = begin_making(templates.path(), "a-1", &Quota::new(Bounds::default())).unwrap();
        let stopped = Quota::new(Bounds::default()).stopped_by(|| Some("enough".to_owned()));
        let refused = begin_making(templates.path(), "a-1", &stopped).unwrap_err();
        assert!(matches!(refused, LayerError::Stopped(_)), "{refused}");
    }

    #[test]
    fn a_layer_is_opened_with_those_that_it_depends_on() {
        let templates = tempfile::tempdir().unwrap();
        make(templates.path(), "core-1");
        let more = begin_making(templates.path(), "more-1", &Quota::new(Bounds::default())).unwrap();
        more.set_below("core-1").unwrap();
        more.publish(templates.path(), "more-1").unwrap();
        let ids = |id: &str| -> Result<Vec<String>, LayerError> {
            Ok(Layer::open_stack(templates.path(), id)?.iter().map(|layer| layer.id().to_owned()).collect())
        };
        assert_eq!(ids("more-1").unwrap(), ["more-1", "core-1"]);
        assert_eq!(ids("core-1").unwrap(), ["core-1"]);
        remove_layer(templates.path(), "core-1").unwrap();
        assert!(matches!(ids("more-1"), Err(LayerError::Missing(id)) if id == "core-1"));
        fs::write(templates.path().join("more-1").join(BELOW), "more-1").unwrap();
        assert_eq!(ids("more-1").unwrap().len(), 1 + MAX_BELOW, "a damaged file does not hang");
    }

    #[test]
    fn a_layer_that_is_held_stays() {
        let templates = tempfile::tempdir().unwrap();
        let held = make(templates.path(), "a-1");
        assert!(remove_layer(templates.path(), "a-1").is_err());
        assert!(list_layers(templates.path()).unwrap()[0].in_use);
        drop(held);
        remove_layer(templates.path(), "a-1").unwrap();
        assert!(list_layers(templates.path()).unwrap().is_empty());
    }

    #[test]
    fn a_manifest_that_cannot_be_read_makes_no_layer_seem_unused() {
        let templates = tempfile::tempdir().unwrap();
        drop(make(templates.path(), "a-1"));
        assert!(!list_layers(templates.path()).unwrap()[0].in_use);
        fs::write(templates.path().join("tpl-0123456789abcdef0123456789abcdef.json"), "{").unwrap();
        let error = list_layers(templates.path()).unwrap_err();
        assert!(error.to_string().contains("cannot tell which layers"), "{error}");
        assert_eq!(layer_names(templates.path()).unwrap(), ["a-1"]);
    }

    #[test]
    fn what_a_killed_build_left_is_removed_and_what_is_being_built_is_not() {
        let templates = tempfile::tempdir().unwrap();
        let making = begin_making(templates.path(), "a-1", &Quota::new(Bounds::default())).unwrap();
        fs::create_dir(templates.path().join(".tmp-b-2")).unwrap();
        assert_eq!(remove_unfinished(templates.path()).unwrap(), 1);
        assert!(making.directory.is_dir());
        drop(making);
        assert_eq!(remove_unfinished(templates.path()).unwrap(), 1);
    }

    #[test]
    fn names_that_lead_elsewhere_are_no_layers() {
        let templates = tempfile::tempdir().unwrap();
        for id in ["", "..", "../x", "a/b", ".tmp-a", "a\0b"] {
            assert!(matches!(Layer::open(templates.path(), id), Err(LayerError::Missing(_))), "{id:?}");
        }
    }
}
