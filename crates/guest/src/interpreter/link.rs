//! The guest's end of a kernel's stream, with what is known about it. A context's task owns the kernel; a checkpoint looks at
//! this part of it meanwhile.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use isopod_wire::checkpoint::Connection;
use rustix::net::{RecvFlags, recv};
use tokio::net::UnixStream;

use super::ends::KernelEnds;
use super::events::{Kind, MAX_PARSED_LINE, kind};
use super::lines::Lines;
use crate::{connection, sys};

/// More than a stream holds.
const MAX_PEEK: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: UnixStream,
    /// What was read from the stream. Locked only for a moment.
    lines: Mutex<Lines>,
    pub(super) connections: KernelConnections,
    /// Whether the kernel has got its environment and seed.
    begun: AtomicBool,
    /// Whether it has got a cell whose end was not read yet.
    in_cell: AtomicBool,
}

/// The names of a kernel's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelConnections {
    pub(super) stream: Connection,
    pub(super) stdout: Connection,
    pub(super) stderr: Connection,
}

/// How far a kernel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) begun: bool,
    pub(super) in_cell: bool,
    /// The start of a line whose rest the kernel has not sent yet: enough to tell what kind of line it is.
    pub(super) line: Vec<u8>,
}

impl KernelConnections {
    pub(super) fn new(ends: &KernelEnds) -> rustix::io::Result<Self> {
        Ok(Self {
            stream: connection::of_socket(&ends.stream)?,
            stdout: connection::of_pipe(&ends.stdout)?,
            stderr: connection::of_pipe(&ends.stderr)?,
        })
    }

    pub(super) fn all(self) -> [Connection; 3] {
        [self.stream, self.stdout, self.stderr]
    }
}

impl Link {
    pub(super) fn new(stream: UnixStream, connections: KernelConnections) -> Self {
        Self {
            stream,
            lines: Mutex::default(),
            connections,
            begun: AtomicBool::new(false),
            in_cell: AtomicBool::new(false),
        }
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn set_begun(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_in_cell(&self) -> bool {
        self.in_cell.load(Ordering::Relaxed)
    }

    pub(super) fn set_in_cell(&self, in_cell: bool) {
        self.in_cell.store(in_cell, Ordering::Relaxed);
    }

    /// Continues where an earlier guest was.
    pub(super) fn resume(&self, progress: &Progress) {
        self.begun.store(progress.begun, Ordering::Relaxed);
        self.set_in_cell(progress.in_cell);
        self.lines().room(progress.line.len()).extend_from_slice(&progress.line);
    }

    pub(super) async fn write_all(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(data) {
                Ok(written) => data = &data[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the kernel has read all that was sent to it. If it is gone, nobody will read it.
    pub(super) fn is_read(&self) -> bool {
        sys::unread_by_peer(&self.stream).unwrap_or(0) == 0
    }

    /// How far the kernel is, with what is still in the stream. Takes nothing out of it: a running cell still has to get it.
    pub(super) fn progress(&self) -> Progress {
        let mut unread = vec![0; MAX_PEEK];
        let length =
            recv(&self.stream, &mut unread, RecvFlags::PEEK | RecvFlags::DONTWAIT).map_or(0, |(length, _)| length);
        let line = self.lines().start(MAX_PARSED_LINE + 1).to_vec();
        let (ended, line) = scan(line, &unread[..length]);
        Progress { begun: self.has_begun(), in_cell: self.is_in_cell() && !ended, line }
    }
}

/// Looks for the end of a cell. Also returns the start of the last, incomplete line.
fn scan(mut line: Vec<u8>, unread: &[u8]) -> (bool, Vec<u8>) {
    let mut ended = false;
    let mut rest = unread;
    while let Some(at) = memchr::memchr(b'\n', rest) {
        extend(&mut line, &rest[..at]);
        ended |= kind(line.trim_ascii_end()) == Kind::End;
        line.clear();
        rest = &rest[at + 1..];
    }
    extend(&mut line, rest);
    (ended, line)
}

/// One byte more than is parsed shows that a line is too long for that.
fn extend(line: &mut Vec<u8>, more: &[u8]) {
    let room = (MAX_PARSED_LINE + 1).saturating_sub(line.len());
    line.extend_from_slice(&more[..more.len().min(room)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "{\"type\": \"end_of_execution\"}";

    #[test]
    fn the_end_of_a_cell_is_found_wherever_it_is_cut() {
        let text = format!("{{\"type\":\"result\"}}\n{END}\nrest");
        for cut in 0..text.len() - 5 {
            // What was read is never a whole line.
            let start = text[..cut].rfind('\n').map_or(0, |at| at + 1);
            let (ended, line) = scan(text.as_bytes()[start..cut].to_vec(), &text.as_bytes()[cut..]);
            assert_eq!((ended, line.as_slice()), (true, b"rest".as_slice()), "{cut}");
        }
        assert_eq!(scan(Vec::new(), END.as_bytes()), (false, END.as_bytes().to_vec()));
    }

    #[test]
    fn a_long_line_stays_long_and_is_not_kept() {
        let long = [b'{'; 5000];
        let (ended, line) = scan(long[..10].to_vec(), &long);
        assert!(!ended && line.len() == MAX_PARSED_LINE + 1);
        assert_eq!(kind(&line), Kind::Other);
    }
}
