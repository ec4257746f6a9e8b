//! How far each output stream was delivered, in memory that a server and a guest share.
//!
//! The server stores a position with one instruction, right before the write that it is about. A report by system call
//! would leave a gap in which a killed server has reported output that it never wrote.
//!
//! The server creates the memory, and seals it: nobody can shrink it, so neither side's access can fault. The guest may
//! write to it, which only confuses its own output: the server never reads it.
#![expect(unsafe_code, reason = "shared memory has no safe binding")]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// How many streams have a position at the same time.
pub const SLOTS: usize = 512;

const LENGTH: usize = SLOTS * size_of::<AtomicU64>();
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The place of one stream's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

/// The shared memory, mapped into this process.
#[derive(Debug)]
pub struct Positions {
    /// `SLOTS` of them, valid until this is dropped.
    first: NonNull<AtomicU64>,
}

// SAFETY: the memory belongs to no thread, and every access is atomic.
unsafe impl Send for Positions {}
// SAFETY: as above.
unsafe impl Sync for Positions {}

impl Slot {
    /// `None` if there are not so many.
    pub fn new(number: u64) -> Option<Self> {
        u16::try_from(number).ok().filter(|number| usize::from(*number) < SLOTS).map(Self)
    }

    pub fn number(self) -> u64 {
        self.0.into()
    }
}

impl Positions {
    /// Creates the memory. The other process opens it by the descriptor.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let memory = memfd_create("isopod-positions", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, LENGTH as u64)?;
        fcntl_add_seals(&memory, SEALS)?;
        Ok((Self::open(&memory)?, memory))
    }

    /// Maps memory that another process created. Memory that could shrink, or is too short, is refused.
    pub fn open(memory: impl AsFd) -> io::Result<Self> {
        let sealed = fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK);
        if !sealed || fstat(&memory)?.st_size < LENGTH as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory of the positions is not sealed"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address, and the seal keeps every page of the mapping valid.
        let start = unsafe { mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, &memory, 0)? };
        let first = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first })
    }

    /// Sends the memory to the other process, with some bytes: a descriptor cannot travel alone.
    pub fn send(socket: impl AsFd, bytes: &[u8], memory: impl AsFd) -> io::Result<()> {
        let descriptors = [memory.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub fn get(&self, slot: Slot) -> u64 {
        self.at(slot).load(Ordering::Acquire)
    }

    pub fn set(&self, slot: Slot, position: u64) {
        self.at(slot).store(position, Ordering::Release);
    }

    fn at(&self, slot: Slot) -> &AtomicU64 {
        // SAFETY: a slot's number is below `SLOTS`, the mapping is as long as this borrow, and page-aligned.
        unsafe { self.first.add(slot.0.into()).as_ref() }
    }
}

impl Drop for Positions {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u64) -> Slot {
        Slot::new(number).expect("a slot")
    }

    #[test]
    fn what_one_side_sets_the_other_gets() {
        let (server, memory) = Positions::create().expect("memory");
        let guest = Positions::open(&memory).expect("the same memory");
        drop(memory);
        server.set(slot(0), 7);
        server.set(slot(511), u64::MAX);
        assert_eq!([0, 1, 511].map(|number| guest.get(slot(number))), [7, 0, u64::MAX]);
        drop(server);
        assert_eq!(guest.get(slot(0)), 7);
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&memory, LENGTH as u64).expect("a length");
        assert!(Positions::open(&memory).is_err(), "not sealed");
        let short = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&short, 8).expect("a length");
        fcntl_add_seals(&short, SEALS).expect("seals");
        assert!(Positions::open(&short).is_err(), "too short");
        let (_, memory) = Positions::create().expect("memory");
        assert!(ftruncate(&memory, 0).is_err(), "shrinks");
        assert!(fcntl_add_seals(&memory, SealFlags::WRITE).is_err(), "takes more seals");
    }

    #[test]
    fn slots_are_numbered_from_zero() {
        assert_eq!(Slot::new(511).map(Slot::number), Some(511));
        assert_eq!([512, 65536, u64::MAX].map(Slot::new), [None; 3]);
    }
}
