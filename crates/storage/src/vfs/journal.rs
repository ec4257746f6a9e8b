//! The journal: everything that the bucket does not have yet, so that a crash forgets nothing of it.
//!
//! A frame is what one call changes, and counts as a whole or not at all. Frames are written before the call is
//! acknowledged, which is enough against a crash of this process; `sync` makes them last through a power failure, one
//! fsync for all who wait. The last frame of a file may be torn, and is then dropped: nobody was told of it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use serde::{Deserialize, Serialize};

use super::node::{Ino, Remote};
use crate::attributes::{Attributes, Kind};

const FILE: &str = "journal";
const NEW_FILE: &str = "journal.new";
/// No frame is longer; a length beyond it is not ours.
const MAX_FRAME: usize = 1 << 30;

/// One thing to remember.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A node as it is now, with work to be done for it.
    Node(Box<NodeRecord>),
    /// A program has this node open, of which there is nothing else to remember. A later process must know it by the
    /// same number, if it goes on with the mount.
    Opened(Box<NodeRecord>),
    Closed(Ino),
    /// Nothing is to be done for this node any more.
    Settled(Ino),
    /// An object is to be deleted.
    #[serde(rename = "Doom")]
    Delete(String),
    /// It is deleted, or wanted again.
    #[serde(rename = "Undoom")]
    DeletionSettled(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) ino: Ino,
    /// Where it stands in the tree, as a key.
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) attributes: Attributes,
    pub(crate) known: bool,
    pub(crate) size: u64,
    /// The local copy holds bytes that the bucket does not have.
    pub(crate) content: bool,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) remote: Option<Remote>,
}

#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    file: Arc<File>,
    /// How long the file is.
    length: u64,
    /// Bytes written since the last time that only what counts was kept.
    grown: u64,
    commits: Arc<Commits>,
}

impl Journal {
    /// Opens the journal and returns what it remembers, oldest first.
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
            tracing::warn!(dropped = bytes.len() - good, "the last frame of the journal is torn and was dropped");
        }
        let file = File::options().create(true).append(true).open(&path)?;
        file.set_len(good as u64)?;
        let file = Arc::new(file);
        let commits =
            Arc::new(Commits { state: Mutex::default(), done: Condvar::new(), file: Mutex::new(file.clone()) });
        let journal = Self { directory: directory.to_owned(), file, length: good as u64, grown: good as u64, commits };
        Ok((journal, records))
    }

    /// Writes a frame.
    pub(crate) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let frame = write_frame(records);
        if let Err(error) = (&*self.file).write_all(&frame) {
            // Half a frame would hide all that come after it.
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

    /// Replaces the journal by one that holds only these. If that fails, the old one goes on.
    pub(crate) fn compact(&mut self, records: &[Record]) -> io::Result<()> {
        let new = self.directory.join(NEW_FILE);
        let written = write_anew(&new, records).inspect_err(|_| {
            // On a full disk it would only take room.
            let _ = fs::remove_file(&new);
        });
        let (file, length) = written?;
        fs::rename(&new, self.directory.join(FILE))?;
        // At once: whatever is written from now on must go where the next start looks for it.
        self.file = Arc::new(file);
        *self.commits.file.lock().expect("no panic while held") = self.file.clone();
        self.length = length;
        self.grown = 0;
        File::open(&self.directory)?.sync_all()
    }

    /// After a compaction that failed: the next try is to wait for a while.
    pub(crate) fn put_off_compaction(&mut self) {
        self.grown /= 2;
    }

    /// What waits for the frames so far to be durable. To be called without any lock.
    pub(crate) fn syncer(&self) -> Syncer {
        Syncer { commits: self.commits.clone() }
    }
}

/// Counts group commits: a commit that began after a frame was written covers it.
#[derive(Debug)]
struct Commits {
    state: Mutex<CommitState>,
    done: Condvar,
    /// The file of now: whoever commits does it for those who wrote into a newer one too.
    file: Mutex<Arc<File>>,
}

#[derive(Debug, Default)]
struct CommitState {
    started: u64,
    finished: u64,
    failed: u64,
    running: bool,
}

/// Makes durable what was in the journal when it was made.
#[derive(Debug)]
pub(crate) struct Syncer {
    commits: Arc<Commits>,
}

impl Syncer {
    /// Waits for a commit that begins from now on, and runs it if nobody else does.
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

/// A durable file with these records, open for more, and its length.
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
    serde_json::to_writer(&mut frame, records).expect("records are plain data");
    let length = (frame.len() - 8) as u32;
    let sum = crc32fast::hash(&frame[8..]);
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..8].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// All whole frames, and where the first one that is not whole begins.
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
