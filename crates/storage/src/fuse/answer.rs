//! Handles each kind of request.

use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::session::{Answer, Mount, OpenFile, Request};
use super::wire::{self, Operation, Out, Truncated, node_of};
use crate::attributes::Kind;
use crate::vfs::{Attr, Caller, FsError, Replace, SetAttr, XattrMode};

/// Cached pages stay valid after an open, because the kernel is notified of every change.
const KEEP_CACHE: u32 = 1 << 1;
/// Bytes go from the program directly to us. Passing through the kernel's cache would double the cost. Only for handles
/// that cannot read, because the others may be mapped into memory.
const DIRECT: u32 = 1 << 0;

const O_WRONLY: u32 = 1;

const O_ACCMODE: u32 = 3;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const RENAME_NOREPLACE: u32 = 1;
const FILE_TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// Why a request failed.
#[derive(Debug)]
enum Failure {
    Fs(FsError),
    Errno(Errno),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

impl From<Truncated> for Failure {
    fn from(_: Truncated) -> Self {
        Self::Errno(Errno::INVAL)
    }
}

type Done = Result<Out, Failure>;

impl Mount {
    pub(super) async fn answer(&self, request: &Request) -> Answer {
        let done = match request.operation {
            Operation::Forget | Operation::BatchForget => {
                let _ = self.forget(request);
                return Answer::Silence;
            }
            Operation::Interrupt => return Answer::Silence,
            Operation::Lookup => self.lookup(request).await,
            Operation::GetAttr => self.get_attr(request).await,
            Operation::SetAttr => self.set_attr(request).await,
            Operation::ReadLink => self.read_link(request).await,
            Operation::Symlink => self.symlink(request).await,
            Operation::MkNod => self.mknod(request).await,
            Operation::MkDir => self.mkdir(request).await,
            Operation::Unlink => self.unlink(request).await,
            Operation::RmDir => self.rmdir(request).await,
            Operation::Rename | Operation::Rename2 => self.rename(request).await,
            // An object has only one key, so there are no hard links.
            Operation::Link => Err(Failure::Errno(Errno::PERM)),
            Operation::Open => self.open(request).await,
            Operation::Create => self.create(request).await,
            Operation::Read => self.read(request).await,
            Operation::Write => self.write(request).await,
            Operation::Release => self.release(request),
            Operation::FSync | Operation::FSyncDir | Operation::SyncFs => self.fsync(request).await,
            Operation::StatFs => self.statfs(request),
            Operation::SetXattr => self.set_xattr(request).await,
            Operation::GetXattr => self.get_xattr(request).await,
            Operation::ListXattr => self.list_xattr(request).await,
            Operation::RemoveXattr => self.remove_xattr(request).await,
            Operation::OpenDir => self.open_dir(request).map_err(Failure::from),
            Operation::ReadDir => self.read_dir(request, false).await.map_err(Failure::from),
            Operation::ReadDirPlus => self.read_dir(request, true).await.map_err(Failure::from),
            Operation::ReleaseDir => self.release_dir(request).map_err(Failure::from),
            Operation::Init | Operation::Destroy => Ok(Out::default()),
        };
        match done {
            Ok(out) => Answer::Done(out.0),
            Err(Failure::Errno(errno)) => Answer::Refused(errno),
            Err(Failure::Fs(error)) => Answer::from(error),
        }
    }

    pub(super) fn caller(&self, request: &Request) -> Caller {
        Caller { mount: self.id, uid: request.header.uid, gid: request.header.gid }
    }

    /// How long the kernel may cache our answers.
    pub(super) fn valid(&self) -> Duration {
        self.vfs.settings.ttl
    }

    /// An entry, which the kernel keeps until it forgets it.
    pub(super) fn entry(&self, attr: &Attr) -> Result<Out, FsError> {
        self.hand_out(attr)?;
        Ok(Out::default().entry(attr, node_of(attr.ino, self.root), self.valid()))
    }

    pub(super) fn hand_out(&self, attr: &Attr) -> Result<(), FsError> {
        self.vfs.remember(attr.ino)?;
        self.watch.remember(attr.ino);
        Ok(())
    }

    fn forget(&self, request: &Request) -> Result<(), Truncated> {
        let mut fields = request.fields();
        if request.operation == Operation::Forget {
            self.forget_one(request.header.node, fields.u64()?);
            return Ok(());
        }
        let count = fields.u32()?;
        fields.skip(4)?;
        for _ in 0..count {
            self.forget_one(fields.u64()?, fields.u64()?);
        }
        Ok(())
    }

    fn forget_one(&self, node: u64, times: u64) {
        let ino = wire::ino_of(node, self.root);
        let times = self.watch.forget_times(ino, times);
        if times > 0 {
            self.vfs.forget(ino, times);
        }
    }

    async fn lookup(&self, request: &Request) -> Done {
        let name = request.fields().name()?;
        let attr = self.vfs.lookup(self.ino(request.header.node)?, name).await?;
        Ok(self.entry(&attr)?)
    }

    async fn get_attr(&self, request: &Request) -> Done {
        let attr = self.vfs.attr(self.ino(request.header.node)?).await?;
        Ok(Out::default().attr_answer(&attr, node_of(attr.ino, self.root), self.valid()))
    }

    async fn set_attr(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let valid = fields.u32()?;
        fields.skip(12)?;
        let size = fields.u64()?;
        fields.skip(16)?;
        let mtime = fields.u64()?;
        fields.skip(12)?;
        let mtime_nanos = fields.u32()?;
        fields.skip(4)?;
        let mode = fields.u32()?;
        fields.skip(4)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        let has = |bit: u32| valid & (1 << bit) != 0;
        let ino = self.ino(request.header.node)?;
        let mut set = SetAttr {
            mode: has(0).then_some(mode),
            uid: has(1).then_some(uid),
            gid: has(2).then_some(gid),
            size: has(3).then_some(size),
            mtime: has(5).then(|| wire::time(mtime, mtime_nanos)),
        };
        if has(8) {
            set.mtime = Some(SystemTime::now());
        }
        if has(11) && set.mode.is_none() {
            set.mode = Some(self.vfs.attr(ino).await?.mode & !0o6000);
        }
        let attr = self.vfs.set_attr(self.caller(request), ino, set).await?;
        Ok(Out::default().attr_answer(&attr, node_of(attr.ino, self.root), self.valid()))
    }

    async fn read_link(&self, request: &Request) -> Done {
        let target = self.vfs.read_link(self.ino(request.header.node)?).await?;
        Ok(Out(target))
    }

    async fn symlink(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let (name, target) = (fields.name()?, fields.name()?);
        let parent = self.ino(request.header.node)?;
        let attr = self.vfs.make_symlink(self.caller(request), parent, name, target).await?;
        Ok(self.entry(&attr)?)
    }

    async fn mknod(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let mode = fields.u32()?;
        fields.skip(12)?;
        let name = fields.name()?;
        if mode & FILE_TYPE != REGULAR && mode & FILE_TYPE != 0 {
            // An object cannot be a pipe, a socket or a device.
            return Err(Failure::Errno(Errno::PERM));
        }
        let parent = self.ino(request.header.node)?;
        let attr = self.vfs.create(self.caller(request), parent, name, mode).await?;
        self.vfs.close_file(attr.ino, true)?;
        Ok(self.entry(&attr)?)
    }

    async fn mkdir(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let mode = fields.u32()?;
        fields.skip(4)?;
        let name = fields.name()?;
        let parent = self.ino(request.header.node)?;
        let attr = self.vfs.make_directory(self.caller(request), parent, name, mode).await?;
        Ok(self.entry(&attr)?)
    }

    async fn unlink(&self, request: &Request) -> Done {
        let name = request.fields().name()?;
        self.vfs.unlink(self.caller(request), self.ino(request.header.node)?, name).await?;
        Ok(Out::default())
    }

    async fn rmdir(&self, request: &Request) -> Done {
        let name = request.fields().name()?;
        self.vfs.remove_directory(self.caller(request), self.ino(request.header.node)?, name).await?;
        Ok(Out::default())
    }

    async fn rename(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let target = fields.u64()?;
        let mut flags = 0;
        if request.operation == Operation::Rename2 {
            flags = fields.u32()?;
            fields.skip(4)?;
        }
        let (old, new) = (fields.name()?, fields.name()?);
        let replace = match flags {
            0 => Replace::Yes,
            RENAME_NOREPLACE => Replace::No,
            _ => return Err(Failure::Errno(Errno::INVAL)),
        };
        let (from, to) = (self.ino(request.header.node)?, self.ino(target)?);
        self.vfs.rename(self.caller(request), (from, old), (to, new), replace).await?;
        Ok(Out::default())
    }

    async fn open(&self, request: &Request) -> Done {
        let flags = request.fields().u32()?;
        let ino = self.ino(request.header.node)?;
        let write = flags & O_ACCMODE != 0;
        self.vfs.open_file(ino, write, flags & O_TRUNC != 0).await?;
        Ok(self.opened(Out::default(), ino, flags))
    }

    async fn create(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let (flags, mode) = (fields.u32()?, fields.u32()?);
        fields.skip(8)?;
        let name = fields.name()?;
        let parent = self.ino(request.header.node)?;
        let attr = match self.vfs.create(self.caller(request), parent, name, mode).await {
            Ok(attr) => attr,
            // The kernel asks to create a file that it has not looked up, but it was created in the meantime.
            Err(FsError::Exists) => {
                let attr = self.vfs.lookup(parent, name).await?;
                self.vfs.open_file(attr.ino, true, false).await?;
                attr
            }
            Err(error) => return Err(error.into()),
        };
        let entry = self.entry(&attr)?;
        Ok(self.opened_for_writing(entry, attr.ino, flags))
    }

    fn opened(&self, out: Out, ino: u64, flags: u32) -> Out {
        self.hand_over(out, OpenFile { ino, write: flags & O_ACCMODE != 0 }, flags)
    }

    /// A file that was just created is open for writing on our side, whatever the program asked for.
    fn opened_for_writing(&self, out: Out, ino: u64, flags: u32) -> Out {
        self.hand_over(out, OpenFile { ino, write: true }, flags)
    }

    fn hand_over(&self, out: Out, file: OpenFile, flags: u32) -> Out {
        let handle = self.next_handle();
        self.files.lock().expect("no panic while held").insert(handle, file);
        let how = if flags & O_ACCMODE == O_WRONLY { DIRECT } else { KEEP_CACHE };
        out.u64(handle).u32(how).u32(0)
    }

    async fn read(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        fields.skip(8)?;
        let (offset, size) = (fields.u64()?, fields.u32()?);
        let bytes = self.vfs.read(self.ino(request.header.node)?, offset, (size as usize).min(wire::MAX_WRITE)).await?;
        Ok(Out(bytes))
    }

    async fn write(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        fields.skip(8)?;
        let (offset, size) = (fields.u64()?, fields.u32()?);
        fields.skip(12)?;
        let flags = fields.u32()?;
        fields.skip(4)?;
        let data = fields.bytes(size as usize)?;
        let ino = self.ino(request.header.node)?;
        let append = flags & O_APPEND != 0;
        let at = self.vfs.write(self.caller(request), ino, offset, data, append).await?;
        if at != offset {
            // A write through another mount came first, so our kernel has cached these bytes at the wrong position.
            self.vfs.forget_everywhere(ino);
        }
        Ok(Out::default().u32(size).u32(0))
    }

    fn release(&self, request: &Request) -> Done {
        let handle = request.fields().u64()?;
        let file = self.files.lock().expect("no panic while held").remove(&handle);
        if let Some(file) = file {
            self.vfs.close_file(file.ino, file.write)?;
        }
        Ok(Out::default())
    }

    async fn fsync(&self, request: &Request) -> Done {
        self.vfs.sync_file(self.ino(request.header.node)?).await?;
        Ok(Out::default())
    }

    fn statfs(&self, _request: &Request) -> Done {
        Ok(Out::default().statfs(&self.vfs.statfs(self.root)?))
    }

    async fn set_xattr(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let (size, flags) = (fields.u32()?, fields.u32()?);
        let name = fields.name()?;
        let value = fields.bytes(size as usize)?;
        let mode = XattrMode { create_only: flags & 1 != 0, replace_only: flags & 2 != 0 };
        self.vfs.set_xattr(self.caller(request), self.ino(request.header.node)?, name, value, mode).await?;
        Ok(Out::default())
    }

    async fn get_xattr(&self, request: &Request) -> Done {
        let mut fields = request.fields();
        let room = fields.u32()?;
        fields.skip(4)?;
        let name = fields.name()?;
        let value = self.vfs.xattr(self.ino(request.header.node)?, name).await?;
        sized(room, value)
    }

    async fn list_xattr(&self, request: &Request) -> Done {
        let room = request.fields().u32()?;
        let names = self.vfs.xattr_names(self.ino(request.header.node)?).await?;
        let list = names.into_iter().flat_map(|name| name.into_bytes().into_iter().chain([0])).collect();
        sized(room, list)
    }

    async fn remove_xattr(&self, request: &Request) -> Done {
        let name = request.fields().name()?;
        self.vfs.remove_xattr(self.caller(request), self.ino(request.header.node)?, name).await?;
        Ok(Out::default())
    }
}

/// Returns a value, or its size if the caller gave no space for it.
fn sized(room: u32, value: Vec<u8>) -> Done {
    match room as usize {
        0 => Ok(Out::default().u32(value.len() as u32).u32(0)),
        room if room < value.len() => Err(FsError::Range.into()),
        _ => Ok(Out(value)),
    }
}

/// The type of an entry, if it is known.
pub(super) fn kind_of(attr: Option<&Attr>) -> Option<Kind> {
    attr.map(|attr| attr.kind)
}
