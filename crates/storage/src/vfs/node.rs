//! One entry of the tree, with what is known about its object, and what the object does not have yet.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::cache::RemoteCopy;
use crate::attributes::{Attributes, Kind};

/// The number of a node. It is unique for the lifetime of the state directory.
pub type Ino = u64;

/// The root of the bucket.
pub const ROOT: Ino = 1;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: Ino,
    pub(crate) parent: Ino,
    pub(crate) name: Vec<u8>,
    /// False after it was removed. It still exists while a program has it open.
    pub(crate) linked: bool,
    pub(crate) body: Body,
    pub(crate) attributes: Attributes,
    /// False while the attributes are a guess, because the object was only seen in a listing.
    pub(crate) known: bool,
    pub(crate) ctime: SystemTime,
    /// The object that contains it. After a rename, the object still has the old key.
    pub(crate) remote: Option<Remote>,
    /// A key that was written without a response. There may be an object, or there may be one later.
    pub(crate) attempted: Option<String>,
    /// What the object does not have yet.
    pub(crate) pending: Option<Pending>,
    /// Counts local changes, so that an upload can tell whether it included the last one.
    pub(crate) version: u64,
    /// The last version that the bucket has.
    pub(crate) uploaded: u64,
    /// The clock of the tree at the last local change or upload.
    pub(crate) touched: u64,
    /// When the store was last known to agree.
    pub(crate) checked: Option<Instant>,
    pub(crate) opens: u32,
    pub(crate) writers: u32,
    /// How often the kernels were told about it, minus how often they have forgotten it.
    pub(crate) lookups: u64,
    /// The directory of the execution whose quota it counts towards.
    pub(crate) scope: Option<Ino>,
    /// Limits the requests to the store about this node to one at a time.
    pub(crate) gate: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
pub(crate) enum Body {
    Directory(Directory),
    File(FileBody),
    Symlink(Vec<u8>),
}

#[derive(Debug, Default)]
pub(crate) struct Directory {
    pub(crate) children: BTreeMap<Vec<u8>, Ino>,
    /// When the directory was last listed completely.
    pub(crate) listed: Option<Instant>,
    /// Whether it has more entries than one page. Then single names are requested individually.
    pub(crate) big: bool,
    /// Whether a listing is in progress in the background.
    pub(crate) listing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct FileBody {
    pub(crate) size: u64,
    /// Whether all bytes are in the local copy.
    pub(crate) local: bool,
    /// The local copy, while a program has the file open.
    pub(crate) file: Option<Arc<File>>,
    /// The chunks of the object that were read.
    pub(crate) copy: Option<Arc<RemoteCopy>>,
    pub(crate) used: Option<Instant>,
    /// The last contiguous writes that are not yet being sent to the disk.
    pub(crate) streamed: Range<u64>,
}

/// An object as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remote {
    pub(crate) key: String,
    pub(crate) tag: String,
    pub(crate) size: u64,
}

#[derive(Debug)]
pub(crate) struct Pending {
    /// Whether the bytes differ, and not only the name or the attributes.
    pub(crate) content: bool,
    pub(crate) since: Instant,
    pub(crate) due: Instant,
    pub(crate) attempts: u32,
    pub(crate) error: Option<String>,
}

impl Node {
    pub(crate) fn kind(&self) -> Kind {
        match self.body {
            Body::Directory(_) => Kind::Directory,
            Body::File(_) => Kind::File,
            Body::Symlink(_) => Kind::Symlink,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match &self.body {
            Body::Directory(_) => 4096,
            Body::File(file) => file.size,
            Body::Symlink(target) => target.len() as u64,
        }
    }

    /// What it counts towards a quota.
    pub(crate) fn weight(&self) -> u64 {
        if self.kind() == Kind::File { self.size() } else { 0 }
    }

    pub(crate) fn directory(&self) -> Option<&Directory> {
        if let Body::Directory(directory) = &self.body { Some(directory) } else { None }
    }

    pub(crate) fn directory_mut(&mut self) -> Option<&mut Directory> {
        if let Body::Directory(directory) = &mut self.body { Some(directory) } else { None }
    }

    pub(crate) fn file(&self) -> Option<&FileBody> {
        if let Body::File(file) = &self.body { Some(file) } else { None }
    }

    pub(crate) fn file_mut(&mut self) -> Option<&mut FileBody> {
        if let Body::File(file) = &mut self.body { Some(file) } else { None }
    }

    pub(crate) fn attr(&self) -> Attr {
        Attr {
            ino: self.ino,
            kind: self.kind(),
            size: self.size(),
            mode: self.attributes.mode,
            uid: self.attributes.uid,
            gid: self.attributes.gid,
            mtime: self.attributes.mtime,
            ctime: self.ctime,
            links: match &self.body {
                _ if !self.linked => 0,
                Body::Directory(_) => 2,
                _ => 1,
            },
        }
    }
}

/// What a program gets from stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: Kind,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: SystemTime,
    pub ctime: SystemTime,
    pub links: u32,
}
