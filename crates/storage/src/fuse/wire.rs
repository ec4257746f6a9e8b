//! The FUSE protocol as bytes. Requests are read from plain buffers, and replies are written into them.
//!
//! We have our own implementation because we must be able to take over a connection from a daemon that died. Then there
//! is no first message to answer, and pending requests must be sent again. Numbers and layouts are those of
//! `linux/fuse.h`, protocol 7.38.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::attributes::Kind;
use crate::vfs::{Attr, Ino, Statfs};

pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 38;
/// The maximum number of bytes in one write or read.
pub(super) const MAX_WRITE: usize = 1 << 20;
/// The maximum length of a request.
pub(super) const MAX_REQUEST: usize = MAX_WRITE + 4096;
pub(super) const IN_HEADER: usize = 40;
/// The root node of every mount.
pub(super) const ROOT_NODE: u64 = 1;

macro_rules! operations {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// The kinds of requests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Operation { $($name),* }

        impl Operation {
            pub(super) fn parse(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

operations! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, Symlink = 6, MkNod = 8, MkDir = 9, Unlink = 10,
    RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, StatFs = 17, Release = 18, FSync = 20,
    SetXattr = 21, GetXattr = 22, ListXattr = 23, RemoveXattr = 24, Init = 26, OpenDir = 27,
    ReadDir = 28, ReleaseDir = 29, FSyncDir = 30, Create = 35, Interrupt = 36, Destroy = 38, BatchForget = 42,
    ReadDirPlus = 44, Rename2 = 45, SyncFs = 50,
}

/// The flags that we request in the first message.
pub(super) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const EXTENDED: u64 = 1 << 30;
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
}

/// A field is missing, which the kernel never does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Truncated;

/// Reads fields one after another.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn u32(&mut self) -> Result<u32, Truncated> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Truncated> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn skip(&mut self, length: usize) -> Result<(), Truncated> {
        self.0 = self.0.get(length..).ok_or(Truncated)?;
        Ok(())
    }

    /// A name that ends with a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Truncated> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Truncated)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(name)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*field)
    }
}

/// The header of every request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) operation: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut fields = Fields(bytes);
        let length = fields.u32()? as usize;
        let header = Self {
            operation: fields.u32()?,
            unique: fields.u64()?,
            node: fields.u64()?,
            uid: fields.u32()?,
            gid: fields.u32()?,
        };
        if length == bytes.len() && length >= IN_HEADER { Ok(header) } else { Err(Truncated) }
    }
}

/// Writes fields one after another.
#[derive(Debug, Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn attr(self, attr: &Attr, node: u64) -> Self {
        let (mtime, ctime) = (since_epoch(attr.mtime), since_epoch(attr.ctime));
        // Access times are not stored. The time of the last change is used instead.
        self.u64(node)
            .u64(attr.size)
            .u64(attr.size.div_ceil(512))
            .u64(mtime.as_secs())
            .u64(mtime.as_secs())
            .u64(ctime.as_secs())
            .u32(mtime.subsec_nanos())
            .u32(mtime.subsec_nanos())
            .u32(ctime.subsec_nanos())
            .u32(attr.mode | attr.kind.type_bits())
            .u32(attr.links)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(0)
            .u32(4096)
            .u32(0)
    }

    pub(super) fn attr_answer(self, attr: &Attr, node: u64, valid: Duration) -> Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attr(attr, node)
    }

    pub(super) fn entry(self, attr: &Attr, node: u64, valid: Duration) -> Self {
        self.u64(node)
            .u64(0)
            .u64(valid.as_secs())
            .u64(valid.as_secs())
            .u32(valid.subsec_nanos())
            .u32(valid.subsec_nanos())
            .attr(attr, node)
    }

    /// Takes the place of an entry whose attributes are not sent.
    pub(super) fn no_entry(mut self) -> Self {
        self.0.resize(self.0.len() + ENTRY, 0);
        self
    }

    pub(super) fn dirent(mut self, node: u64, next: u64, kind: Option<Kind>, name: &[u8]) -> Self {
        let kind = kind.map_or(0, |kind| kind.type_bits() >> 12);
        self = self.u64(node).u64(next).u32(name.len() as u32).u32(kind).bytes(name);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }

    pub(super) fn statfs(self, stats: &Statfs) -> Self {
        const BLOCK: u64 = 4096;
        let mut out = self
            .u64(stats.total / BLOCK)
            .u64(stats.free / BLOCK)
            .u64(stats.free / BLOCK)
            .u64(stats.files)
            .u64(stats.free_files)
            .u32(BLOCK as u32)
            .u32(255)
            .u32(BLOCK as u32);
        out.0.resize(80, 0);
        out
    }
}

const ENTRY: usize = 128;

/// The size of a directory entry.
pub(super) fn dirent_size(name: &[u8], plus: bool) -> usize {
    let bare = (24 + name.len()).next_multiple_of(8);
    if plus { bare + ENTRY } else { bare }
}

/// A notification to drop what is cached of a node: everything, or only its attributes.
pub(super) fn forget_node(node: u64, content: bool) -> Vec<u8> {
    // A negative offset means that the pages stay.
    let offset = if content { 0 } else { u64::MAX };
    notification(2, Out::default().u64(node).u64(offset).u64(0))
}

/// A notification to drop a name.
pub(super) fn forget_name(parent: u64, name: &[u8]) -> Vec<u8> {
    notification(3, Out::default().u64(parent).u32(name.len() as u32).u32(0).bytes(name).bytes(&[0]))
}

/// Asks the kernel to send unanswered requests again.
pub(super) fn resend() -> Vec<u8> {
    notification(7, Out::default())
}

fn notification(code: u32, body: Out) -> Vec<u8> {
    Out::default().u32(16 + body.0.len() as u32).u32(code).u64(0).bytes(&body.0).0
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(super) fn time(seconds: u64, nanos: u32) -> SystemTime {
    // The value comes from a program and may be anything.
    UNIX_EPOCH.checked_add(Duration::new(seconds.min(1 << 40), nanos.min(999_999_999))).unwrap_or(UNIX_EPOCH)
}

/// The node number inside a mount with this root.
pub(super) fn node_of(ino: Ino, root: Ino) -> u64 {
    if ino == root { ROOT_NODE } else { ino }
}

/// The inverse of [`node_of`].
pub(super) fn ino_of(node: u64, root: Ino) -> Ino {
    if node == ROOT_NODE { root } else { node }
}
