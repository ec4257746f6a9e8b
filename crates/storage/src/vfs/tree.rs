//! The tree in memory: nodes, their places, the lent keys, and the usage of each execution.
//!
//! This is pure bookkeeping. It neither contacts the store nor writes the journal. A key is *lent* while the bytes of a
//! node are still there although the node has moved away. Nothing may write or delete the key before the bytes were
//! copied to the new key.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant, SystemTime};

use super::error::FsError;
use super::node::{Body, Ino, Node, ROOT, Remote};
use crate::attributes::{Attributes, Kind};
use crate::name;

#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<Ino, Node>,
    next_ino: Ino,
    /// Counts local changes, to tell which of them a listing cannot know.
    pub(crate) clock: u64,
    /// The objects to delete.
    pub(crate) deletions: BTreeMap<String, PendingDeletion>,
    /// The keys whose object belongs to a node that has moved away.
    lent: BTreeMap<String, Ino>,
    scopes: HashMap<Ino, Scope>,
    /// The approximate memory of the nodes, and its limit.
    held: u64,
    max_held: u64,
    /// The objects that were deleted recently, with the clock and the time.
    deleted: HashMap<String, (u64, Instant)>,
}

/// When to delete an object.
#[derive(Debug)]
pub(crate) struct PendingDeletion {
    pub(crate) due: Instant,
    pub(crate) attempts: u32,
}

/// The current usage of an execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub files: u64,
}

/// The limits of an execution. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
}

#[derive(Debug, Default)]
struct Scope {
    usage: Usage,
    quota: Quota,
}

/// The memory of a node besides its name.
const NODE_BYTES: u64 = 768;
/// The limit for all nodes together. The sandboxes of all teams share one daemon, so none may fill its memory with
/// names.
const MAX_HELD: u64 = 4 << 30;

impl Tree {
    pub(crate) fn new(root: Attributes) -> Self {
        let mut tree = Self {
            nodes: HashMap::new(),
            next_ino: ROOT + 1,
            clock: 0,
            deletions: BTreeMap::new(),
            lent: BTreeMap::new(),
            scopes: HashMap::new(),
            held: 0,
            max_held: MAX_HELD.min(memory_of_this_host() / 4),
            deleted: HashMap::new(),
        };
        let mut node = tree.blank(ROOT, Body::Directory(Default::default()), root);
        node.linked = true;
        node.known = true;
        tree.nodes.insert(ROOT, node);
        tree
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<&Node, FsError> {
        self.nodes.get(&ino).ok_or(FsError::Stale)
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Result<&mut Node, FsError> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub(crate) fn next_ino(&mut self) -> Ino {
        self.next_ino += 1;
        self.next_ino - 1
    }

    /// Makes sure that no number up to this one is used from now on.
    pub(crate) fn skip_to(&mut self, ino: Ino) {
        self.next_ino = self.next_ino.max(ino + 1);
    }

    /// A node that has no place in the tree yet.
    pub(crate) fn blank(&self, ino: Ino, body: Body, attributes: Attributes) -> Node {
        Node {
            ino,
            parent: ROOT,
            name: Vec::new(),
            linked: false,
            body,
            attributes,
            known: false,
            ctime: SystemTime::now(),
            remote: None,
            attempted: None,
            pending: None,
            version: 0,
            uploaded: 0,
            touched: 0,
            checked: None,
            opens: 0,
            writers: 0,
            lookups: 0,
            scope: None,
            gate: Default::default(),
        }
    }

    pub(crate) fn child(&self, parent: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
        let directory = self.get(parent)?.directory().ok_or(FsError::NotDirectory)?;
        Ok(directory.children.get(name).copied())
    }

    /// Adds a node to a directory, under a free name.
    pub(crate) fn attach(&mut self, mut node: Node, parent: Ino, name: Vec<u8>) -> Result<(), FsError> {
        let above = self.get_mut(parent)?;
        let scope = above.scope;
        above.directory_mut().ok_or(FsError::NotDirectory)?.children.insert(name.clone(), node.ino);
        node.parent = parent;
        node.name = name;
        node.linked = true;
        node.scope = scope;
        self.charge(scope, node.weight() as i64, 1);
        self.held += held_by(&node);
        self.nodes.insert(node.ino, node);
        Ok(())
    }

    /// Removes a node from its directory. It stays in the table until `reap`. Its bytes count as long as a program has
    /// it open, because they are on the disk for that time.
    pub(crate) fn detach(&mut self, ino: Ino) -> Result<(), FsError> {
        let node = self.get_mut(ino)?;
        if !std::mem::replace(&mut node.linked, false) {
            return Ok(());
        }
        let (parent, name, scope) = (node.parent, node.name.clone(), node.scope);
        let gone = if node.opens == 0 { node.weight() as i64 } else { 0 };
        self.charge(scope, -gone, -1);
        if let Ok(above) = self.get_mut(parent)
            && let Some(directory) = above.directory_mut()
        {
            directory.children.remove(&name);
        }
        Ok(())
    }

    /// Moves a node to a free name. The keys below it change too. Call `lend` afterwards.
    pub(crate) fn relocate(&mut self, ino: Ino, parent: Ino, name: Vec<u8>) -> Result<(), FsError> {
        self.detach(ino)?;
        let node = self.get(ino)?;
        if node.opens > 0 {
            self.charge(node.scope, -(node.weight() as i64), 0);
        }
        let scope = self.get(parent)?.scope;
        let above = self.get_mut(parent)?.directory_mut().ok_or(FsError::NotDirectory)?;
        above.children.insert(name.clone(), ino);
        let node = self.get_mut(ino)?;
        node.parent = parent;
        node.name = name;
        node.linked = true;
        let weight = node.weight();
        let old = std::mem::replace(&mut node.scope, scope);
        self.charge(scope, weight as i64, 1);
        if old != scope {
            for below in self.below(ino) {
                let Ok(node) = self.get_mut(below) else { continue };
                let weight = node.weight() as i64;
                node.scope = scope;
                self.charge(old, -weight, -1);
                self.charge(scope, weight, 1);
            }
        }
        Ok(())
    }

    /// Counts one more program that has a file open.
    pub(crate) fn open(&mut self, ino: Ino) -> Result<&mut Node, FsError> {
        let node = self.get_mut(ino)?;
        node.opens += 1;
        if node.opens == 1 && !node.linked {
            let (scope, weight) = (node.scope, node.weight() as i64);
            self.charge(scope, weight, 0);
        }
        self.get_mut(ino)
    }

    /// Counts one program less that has it open.
    pub(crate) fn close(&mut self, ino: Ino) -> Result<&mut Node, FsError> {
        let node = self.get_mut(ino)?;
        let was_open = node.opens > 0;
        node.opens = node.opens.saturating_sub(1);
        if was_open && node.opens == 0 && !node.linked {
            let (scope, weight) = (node.scope, node.weight() as i64);
            self.charge(scope, -weight, 0);
        }
        self.get_mut(ino)
    }

    /// Removes a node that is neither in the tree nor in use. Returns true if it is gone.
    pub(crate) fn reap(&mut self, ino: Ino) -> bool {
        let gone = self.nodes.get(&ino).is_some_and(|node| !node.linked && node.opens == 0 && node.lookups == 0);
        if gone {
            self.unlend(ino);
            let node = self.nodes.remove(&ino);
            self.held = self.held.saturating_sub(node.as_ref().map_or(0, held_by));
        }
        gone
    }

    /// All nodes below a directory, parents first.
    pub(crate) fn below(&self, ino: Ino) -> Vec<Ino> {
        let mut found = Vec::new();
        let mut todo = vec![ino];
        while let Some(next) = todo.pop() {
            let Some(directory) = self.nodes.get(&next).and_then(Node::directory) else { continue };
            for child in directory.children.values() {
                found.push(*child);
                todo.push(*child);
            }
        }
        found
    }

    /// The key of a node. For a directory, this is the prefix without its last `/`.
    pub(crate) fn path_key(&self, ino: Ino) -> String {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let Some(node) = self.nodes.get(&at) else { break };
            parts.push(name::encode(&node.name));
            at = node.parent;
        }
        parts.reverse();
        parts.join("/")
    }

    /// The key of the object for a node.
    pub(crate) fn object_key(&self, ino: Ino) -> String {
        let key = self.path_key(ino);
        let is_directory = self.nodes.get(&ino).is_some_and(|node| node.kind() == Kind::Directory);
        if is_directory { key + "/" } else { key }
    }

    /// The prefix of everything below a directory.
    pub(crate) fn prefix(&self, ino: Ino) -> String {
        if ino == ROOT { String::new() } else { self.path_key(ino) + "/" }
    }

    /// The node that is at a key now.
    pub(crate) fn resolve(&self, key: &str) -> Option<Ino> {
        let mut at = ROOT;
        for part in key.trim_end_matches('/').split('/') {
            at = *self.nodes.get(&at)?.directory()?.children.get(&name::decode(part)?)?;
        }
        let is_directory = self.nodes.get(&at)?.kind() == Kind::Directory;
        (is_directory == key.ends_with('/')).then_some(at)
    }

    /// Whether `ino` is `above` or below it.
    pub(crate) fn is_within(&self, ino: Ino, above: Ino) -> bool {
        let mut at = ino;
        loop {
            if at == above {
                return true;
            }
            match self.nodes.get(&at) {
                Some(node) if at != ROOT => at = node.parent,
                _ => return false,
            }
        }
    }

    /// Records whether the object of a node is at the key of the node.
    pub(crate) fn lend(&mut self, ino: Ino) {
        self.unlend(ino);
        let Some(node) = self.nodes.get(&ino) else { return };
        let Some(Remote { key, .. }) = &node.remote else { return };
        let Some(file) = node.file() else { return };
        let replaced = node.pending.as_ref().is_some_and(|pending| pending.content);
        let needed =
            if node.linked { !replaced && *key != self.object_key(ino) } else { node.opens > 0 && !file.local };
        if needed {
            let key = key.clone();
            self.lent.insert(key, ino);
        }
    }

    /// Records which object contains a node from now on.
    pub(crate) fn set_remote(&mut self, ino: Ino, remote: Option<Remote>) -> Result<(), FsError> {
        self.unlend(ino);
        self.get_mut(ino)?.remote = remote;
        self.lend(ino);
        Ok(())
    }

    fn unlend(&mut self, ino: Ino) {
        if let Some(Remote { key, .. }) = self.nodes.get(&ino).and_then(|node| node.remote.as_ref())
            && self.lent.get(key) == Some(&ino)
        {
            let key = key.clone();
            self.lent.remove(&key);
        }
    }

    /// The node, other than `ino`, that still needs the object at a key.
    pub(crate) fn borrower(&self, key: &str, ino: Option<Ino>) -> Option<Ino> {
        self.lent.get(key).copied().filter(|borrower| Some(*borrower) != ino)
    }

    /// Records that an object was deleted. A listing that was requested earlier may still show it.
    pub(crate) fn note_deletion(&mut self, key: &str, memory: Duration) {
        self.clock += 1;
        let now = Instant::now();
        // Only do this now and then, because checking all of them at every deletion would take long.
        if self.deleted.len().is_power_of_two() {
            self.deleted.retain(|_, (_, when)| now.duration_since(*when) < memory);
        }
        self.deleted.insert(key.to_owned(), (self.clock, now));
    }

    /// Whether a listing that was requested at `clock` shows an object only because it has not been deleted yet.
    pub(crate) fn is_hidden(&self, key: &str, clock: u64) -> bool {
        let went_since = self.deleted.get(key).is_some_and(|(when, _)| *when > clock);
        went_since || self.deletions.contains_key(key) || self.lent.contains_key(key)
    }

    /// Whether something below the key of a directory is hidden. The marker that hides the directory is deleted last.
    pub(crate) fn hides_below(&self, prefix: &str) -> bool {
        let after = (Bound::Excluded(prefix.to_owned()), Bound::Unbounded);
        let starts = |key: Option<&String>| key.is_some_and(|key| key.starts_with(prefix));
        starts(self.deletions.range(after.clone()).next().map(|(key, _)| key))
            || starts(self.lent.range(after).next().map(|(key, _)| key))
    }

    /// Makes a directory one whose usage is counted and limited.
    pub(crate) fn set_scope(&mut self, ino: Ino, quota: Quota) -> Result<(), FsError> {
        self.get(ino)?;
        let below = self.below(ino);
        let scope = self.scopes.entry(ino).or_default();
        scope.quota = quota;
        scope.usage = Usage::default();
        self.get_mut(ino)?.scope = Some(ino);
        for below in below {
            let node = self.get_mut(below)?;
            node.scope = Some(ino);
            let weight = node.weight() as i64;
            self.charge(Some(ino), weight, 1);
        }
        let is_left = |node: &&Node| node.scope == Some(ino) && !node.linked && node.opens > 0;
        let left: u64 = self.nodes.values().filter(is_left).map(Node::weight).sum();
        self.charge(Some(ino), left as i64, 0);
        Ok(())
    }

    pub(crate) fn usage(&self, scope: Ino) -> Option<(Usage, Quota)> {
        self.scopes.get(&scope).map(|scope| (scope.usage, scope.quota))
    }

    /// Refuses what would exceed the quota, and new names if all names together take too much memory.
    pub(crate) fn allow(&self, scope: Option<Ino>, bytes: u64, files: u64) -> Result<(), FsError> {
        if files > 0 && self.held > self.max_held {
            return Err(FsError::Quota);
        }
        let Some(scope) = scope.and_then(|ino| self.scopes.get(&ino)) else { return Ok(()) };
        let over = |used: u64, more: u64, limit: Option<u64>| {
            more > 0 && limit.is_some_and(|limit| used.saturating_add(more) > limit)
        };
        let full =
            over(scope.usage.bytes, bytes, scope.quota.bytes) || over(scope.usage.files, files, scope.quota.files);
        if full { Err(FsError::Quota) } else { Ok(()) }
    }

    /// Changes the size of a file and the usage of its execution.
    pub(crate) fn resize(&mut self, ino: Ino, size: u64) -> Result<(), FsError> {
        let node = self.get_mut(ino)?;
        let scope = node.scope.filter(|_| node.linked || node.opens > 0);
        let file = node.file_mut().ok_or(FsError::IsDirectory)?;
        let difference = size as i64 - file.size as i64;
        file.size = size;
        self.charge(scope, difference, 0);
        Ok(())
    }

    fn charge(&mut self, scope: Option<Ino>, bytes: i64, files: i64) {
        let Some(scope) = scope.and_then(|ino| self.scopes.get_mut(&ino)) else { return };
        scope.usage.bytes = scope.usage.bytes.saturating_add_signed(bytes);
        scope.usage.files = scope.usage.files.saturating_add_signed(files);
    }
}

fn held_by(node: &Node) -> u64 {
    let target = if let Body::Symlink(target) = &node.body { target.len() } else { 0 };
    // The name is stored in the node and in its directory.
    NODE_BYTES + (2 * node.name.len() + target) as u64
}

fn memory_of_this_host() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::vfs::node::FileBody;

    fn attributes() -> Attributes {
        Attributes { mode: 0o755, uid: 0, gid: 0, mtime: UNIX_EPOCH, xattrs: Default::default() }
    }

    fn tree() -> (Tree, Ino) {
        let mut tree = Tree::new(attributes());
        let top = tree.next_ino();
        let node = tree.blank(top, Body::Directory(Default::default()), attributes());
        tree.attach(node, ROOT, b"one".to_vec()).unwrap();
        tree.set_scope(top, Quota { bytes: Some(100), files: Some(2) }).unwrap();
        (tree, top)
    }

    fn file(tree: &mut Tree, top: Ino, name: &str, size: u64) -> Ino {
        let ino = tree.next_ino();
        let node = tree.blank(ino, Body::File(FileBody { size, ..FileBody::default() }), attributes());
        tree.attach(node, top, name.as_bytes().to_vec()).unwrap();
        ino
    }

    fn used(tree: &Tree, top: Ino) -> (u64, u64) {
        let usage = tree.usage(top).unwrap().0;
        (usage.bytes, usage.files)
    }

    #[test]
    fn a_removed_file_counts_until_nobody_has_it_open() {
        let (mut tree, top) = tree();
        let ino = file(&mut tree, top, "f", 60);
        tree.open(ino).unwrap();
        tree.detach(ino).unwrap();
        assert_eq!(used(&tree, top), (60, 0));
        tree.resize(ino, 90).unwrap();
        assert!(tree.allow(Some(top), 20, 0).is_err());
        // A new mount of the directory counts again.
        tree.set_scope(top, Quota { bytes: Some(100), files: Some(2) }).unwrap();
        assert_eq!(used(&tree, top), (90, 0));
        tree.close(ino).unwrap();
        assert_eq!(used(&tree, top), (0, 0));
        // A program may open it once more, through a descriptor that is not an open file.
        tree.open(ino).unwrap();
        assert_eq!(used(&tree, top), (90, 0));
        tree.close(ino).unwrap();
        assert!(tree.reap(ino));
        assert_eq!(used(&tree, top), (0, 0));
    }

    #[test]
    fn an_open_file_that_moves_counts_once() {
        let (mut tree, top) = tree();
        let other = tree.next_ino();
        let node = tree.blank(other, Body::Directory(Default::default()), attributes());
        tree.attach(node, ROOT, b"two".to_vec()).unwrap();
        tree.set_scope(other, Quota::default()).unwrap();
        let ino = file(&mut tree, top, "f", 60);
        tree.open(ino).unwrap();
        tree.relocate(ino, top, b"g".to_vec()).unwrap();
        assert_eq!(used(&tree, top), (60, 1));
        tree.relocate(ino, other, b"g".to_vec()).unwrap();
        assert_eq!((used(&tree, top), used(&tree, other)), ((0, 0), (60, 1)));
        tree.close(ino).unwrap();
        assert_eq!(used(&tree, other), (60, 1));
    }

    #[test]
    fn names_are_limited_by_number_and_by_the_memory_they_take() {
        let (mut tree, top) = tree();
        file(&mut tree, top, "a", 0);
        let second = file(&mut tree, top, "b", 0);
        assert!(matches!(tree.allow(Some(top), 0, 1), Err(FsError::Quota)));
        tree.detach(second).unwrap();
        assert!(tree.reap(second));
        assert!(tree.allow(Some(top), 0, 1).is_ok());
        tree.max_held = tree.held + 1000;
        let target = tree.next_ino();
        let link = tree.blank(target, Body::Symlink(vec![b'x'; 4096]), attributes());
        tree.attach(link, ROOT, b"link".to_vec()).unwrap();
        assert!(matches!(tree.allow(None, 0, 1), Err(FsError::Quota)));
        tree.detach(target).unwrap();
        assert!(tree.reap(target));
        assert!(tree.allow(None, 0, 1).is_ok());
    }
}
