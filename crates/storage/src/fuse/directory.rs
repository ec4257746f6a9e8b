//! Reads directories. The list of entries is fixed when reading starts, so that none is returned twice or skipped
//! because of concurrent changes.

use std::sync::Arc;

use super::answer::kind_of;
use super::session::{Mount, Request};
use super::wire::{Fields, MAX_WRITE, Out, ROOT_NODE, Truncated, dirent_size, node_of};
use crate::attributes::Kind;
use crate::vfs::{DirEntry, FsError};

impl From<Truncated> for FsError {
    fn from(_: Truncated) -> Self {
        Self::Invalid
    }
}

/// The number of entries that every directory starts with: `.` and `..`.
const DOTS: u64 = 2;

impl Mount {
    pub(super) fn open_dir(&self, request: &Request) -> Result<Out, FsError> {
        self.ino(request.header.node)?;
        Ok(Out::default().u64(self.next_handle()).u32(0).u32(0))
    }

    pub(super) fn release_dir(&self, request: &Request) -> Result<Out, FsError> {
        let handle = request.fields().u64()?;
        self.directories.lock().expect("no panic while held").remove(&handle);
        Ok(Out::default())
    }

    pub(super) async fn read_dir(&self, request: &Request, plus: bool) -> Result<Out, FsError> {
        let mut fields: Fields<'_> = request.fields();
        let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let size = (size as usize).min(MAX_WRITE);
        let ino = self.ino(request.header.node)?;
        let entries = self.entries(ino, handle, offset).await?;
        let mut out = Out::default();
        for index in offset..DOTS + entries.len() as u64 {
            let (name, entry) = match index {
                0 => (&b"."[..], None),
                1 => (&b".."[..], None),
                _ => {
                    let entry = &entries[(index - DOTS) as usize];
                    (&entry.name[..], Some(entry))
                }
            };
            if out.0.len() + dirent_size(name, plus) > size {
                break;
            }
            out = self.put_entry(out, name, entry, index + 1, plus);
        }
        Ok(out)
    }

    fn put_entry(&self, mut out: Out, name: &[u8], entry: Option<&DirEntry>, next: u64, plus: bool) -> Out {
        let Some(entry) = entry else {
            out = if plus { out.no_entry() } else { out };
            return out.dirent(ROOT_NODE, next, Some(Kind::Directory), name);
        };
        let node = node_of(entry.ino, self.root);
        if plus {
            // An entry that was removed in the meantime is returned without attributes, and the kernel looks it up
            // again.
            let attr = entry.attr.as_ref().filter(|attr| self.hand_out(attr).is_ok());
            out = match attr {
                Some(attr) => out.entry(attr, node, self.valid()),
                None => out.no_entry(),
            };
        }
        out.dirent(node, next, kind_of(entry.attr.as_ref()), name)
    }

    async fn entries(&self, ino: u64, handle: u64, offset: u64) -> Result<Arc<Vec<DirEntry>>, FsError> {
        let held = self.directories.lock().expect("no panic while held").get(&handle).cloned();
        match held {
            Some(entries) if offset > 0 => Ok(entries),
            _ => {
                let entries = Arc::new(self.vfs.read_directory(ino).await?);
                self.directories.lock().expect("no panic while held").insert(handle, entries.clone());
                Ok(entries)
            }
        }
    }
}
