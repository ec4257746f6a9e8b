//! The journal: everything that the bucket does not have yet, so that it survives a crash.
//!
//! A frame contains what one call changes, and it counts completely or not at all. Frames are written before the call
//! is acknowledged, which is enough to survive a crash of this process. `sync` makes them survive a power failure, with
//! one fsync for all waiting callers. The last frame of a file may be torn. Then it is dropped, because it was never
//! acknowledged.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use serde::{Deserialize, Serialize};

use super::node::{Ino, Remote};
use crate::attributes::{Attributes, Kind};

const FILE: &str = "journal";
const NEW_FILE: &str = "journal.new";
/// The maximum length of a frame. A greater length means that the data is not ours.
const MAX_FRAME: usize = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A node in its current state, with pending work.
    Node(Box<NodeRecord>),
    /// A node that a program has open and for which nothing else is recorded. If a later process continues the mount,
    /// it must know the node by the same number.
    Opened(Box<NodeRecord>),
    Closed(Ino),
    /// Nothing is pending for this node any more.
    Settled(Ino),
    /// An object has to be deleted.
    #[serde(rename = "Doom")]
    Delete(String),
    /// The object is deleted, or needed again.
    #[serde(rename = "Undoom")]
    DeletionSettled(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) ino: Ino,
    /// Its place in the tree, as a key.
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) attributes: Attributes,
    pub(crate) known: bool,
    pub(crate) size: u64,
    /// Whether the local copy has bytes that the bucket does not have.
    pub(crate) content: bool,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) remote: Option<Remote>,
}

#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    file: Arc<File>,
    /// The length of the file.
    length: u64,
    /// The number of bytes that were written since the last compaction.
    grown: u64,
    commits: Arc<Commits>,
}

impl Journal {
    /// Opens the journal and returns its records, oldest first.
    pub(crate) fn open(directory: &Path) -> io::Result<(Self, Vec<Record>)> {
        fs::create_dir_all(directory)?;
        let path = directory.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (records, good) = read_frames(&bytes);
        if good < bytes.len() {
            tracing::warn!(dropped = bytes.len() - good, "the last frame of the journal is incomplete and was dropped");
        }
        let file = File::options().create(true).append(true).open(&path)?;
        file.set_len(good as u64)?;
        let file = Arc::new(file);
        let commits =
            Arc::new(Commits { state: Mutex::default(), done: Condvar::new(), file: Mutex::new(file.clone()) });
        let journal = Self { directory: directory.to_owned(), file, length: good as u64, grown: good as u64, commits };
        Ok((journal, records))
    }

    pub(crate) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let frame = write_frame(records);
        if let Err(error) = (&*self.file).write_all(&frame) {
            // An incomplete frame would hide all frames after it.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += frame.len() as u64;
        self.grown += frame.len() as u64;
        Ok(())
    }

    /// How much was written since the last compaction.
    pub(crate) fn grown(&self) -> u64 {
        self.grown
    }

    /// Replaces the journal with one that contains only these records. If that fails, the old one stays in use.
    pub(crate) fn compact(&mut self, records: &[Record]) -> io::Result<()> {
        let new = self.directory.join(NEW_FILE);
        let written = write_anew(&new, records).inspect_err(|_| {
            // On a full disk, it would only take space.
            let _ = fs::remove_file(&new);
        });
        let (file, length) = written?;
        fs::rename(&new, self.directory.join(FILE))?;
        // Switch at once, because everything that is written from now on must be where the next start looks for it.
        self.file = Arc::new(file);
        *self.commits.file.lock().expect("no panic while held") = self.file.clone();
        self.length = length;
        self.grown = 0;
        File::open(&self.directory)?.sync_all()
    }

    /// Delays the next attempt after a failed compaction.
    pub(crate) fn put_off_compaction(&mut self) {
        self.grown /= 2;
    }

    /// Returns an object that waits until all frames so far are durable. Use it without holding any lock.
    pub(crate) fn syncer(&self) -> Syncer {
        Syncer { commits: self.commits.clone() }
    }
}

/// Counts group commits. A commit that starts after a frame was written covers the frame.
#[derive(Debug)]
struct Commits {
    state: Mutex<CommitState>,
    done: Condvar,
    /// The current file. A commit also covers frames that were written to a newer file.
    file: Mutex<Arc<File>>,
}

#[derive(Debug, Default)]
struct CommitState {
    started: u64,
    finished: u64,
    failed: u64,
    running: bool,
}

/// Makes everything durable that was in the journal when this was created.
#[derive(Debug)]
pub(crate) struct Syncer {
    commits: Arc<Commits>,
}

impl Syncer {
    /// Waits for a commit that starts from now on. Runs it if no other thread does.
    pub(crate) fn sync(&self, also: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.commits.state.lock().expect("no panic while held");
        let wanted = state.started + 1;
        loop {
            if state.finished >= wanted {
                let failed = state.failed >= wanted;
                return if failed { Err(io::Error::other("the journal could not be made durable")) } else { Ok(()) };
            }
            if state.running {
                state = self.commits.done.wait(state).expect("no panic while held");
                continue;
            }
            state.running = true;
            state.started += 1;
            let this = state.started;
            drop(state);
            let file = self.commits.file.lock().expect("no panic while held").clone();
            let result = file.sync_data().and_then(|()| also());
            state = self.commits.state.lock().expect("no panic while held");
            state.running = false;
            state.finished = this;
            if result.is_err() {
                state.failed = this;
            }
            self.commits.done.notify_all();
            if this >= wanted {
                return result;
            }
        }
    }
}

/// Creates a durable file with these records, open for appending. Returns it with its length.
fn write_anew(path: &Path, records: &[Record]) -> io::Result<(File, u64)> {
    let mut file = File::create(path)?;
    let mut length = 0;
    for piece in records.chunks(1024) {
        let frame = write_frame(piece);
        file.write_all(&frame)?;
        length += frame.len() as u64;
    }
    file.sync_data()?;
    Ok((File::options().append(true).open(path)?, length))
}

fn write_frame(records: &[Record]) -> Vec<u8> {
    let mut frame = vec![0; 8];
    serde_json::to_writer(&mut frame, records).expect("records always serialize to JSON");
    let length = (frame.len() - 8) as u32;
    let sum = crc32fast::hash(&frame[8..]);
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..8].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// All complete frames, and the position of the first incomplete one.
fn read_frames(bytes: &[u8]) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some((mut frame, length)) = read_frame(&bytes[at..]) {
        records.append(&mut frame);
        at += length;
    }
    (records, at)
}

fn read_frame(bytes: &[u8]) -> Option<(Vec<Record>, usize)> {
    let (head, rest) = bytes.split_at_checked(8)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let sum = u32::from_le_bytes(head[4..].try_into().ok()?);
    if length > MAX_FRAME {
        return None;
    }
    let body = rest.get(..length)?;
    if crc32fast::hash(body) != sum {
        return None;
    }
    Some((serde_json::from_slice(body).ok()?, 8 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_frame_is_dropped_and_the_next_one_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(directory.path()).unwrap();
        journal.append(&[Record::Delete("a".into()), Record::Delete("b".into())]).unwrap();
        journal.append(&[Record::DeletionSettled("a".into())]).unwrap();
        drop(journal);
        let path = directory.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, records) = Journal::open(directory.path()).unwrap();
            assert!(matches!(records.len(), 0 | 2), "a frame counts as a whole: {records:?}");
            journal.append(&[Record::Settled(7)]).unwrap();
            let (_, after) = Journal::open(directory.path()).unwrap();
            assert_eq!(after.len(), records.len() + 1);
        }
    }

    #[test]
    fn records_have_the_names_that_journals_on_disk_have() {
        let records = [Record::Delete("a".into()), Record::DeletionSettled("a".into()), Record::Settled(7)];
        let text = serde_json::to_string(&records).unwrap();
        assert_eq!(text, r#"[{"Doom":"a"},{"Undoom":"a"},{"Settled":7}]"#);
    }

    #[test]
    fn a_flipped_bit_ends_the_journal_there() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(directory.path()).unwrap();
        journal.append(&[Record::Delete("a".into())]).unwrap();
        journal.append(&[Record::Delete("b".into())]).unwrap();
        let path = directory.path().join(FILE);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(Journal::open(directory.path()).unwrap().1, [Record::Delete("a".into())]);
    }

    #[test]
    fn many_who_wait_share_commits() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(directory.path()).unwrap();
        let commits = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..32 {
                let syncer = journal.syncer();
                let commits = &commits;
                scope.spawn(move || {
                    let count = || {
                        commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        Ok(())
                    };
                    syncer.sync(count).unwrap();
                });
            }
        });
        assert!(commits.load(std::sync::atomic::Ordering::Relaxed) < 32);
    }
}
