//! One file of an upload. An incomplete upload leaves no trace where that is possible: a new file is removed, and an existing
//! one is not touched until the whole body, up to 16 MiB, has arrived. It is then written in place, so that its inode, hard
//! links, mode and watches stay. A larger body is written to an existing file as it arrives, as E2B's daemon does. Of several
//! uploads to one path, the last one wins and is complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::files::failed;
use crate::files::upload_order::Turn;
use crate::files::write::{create, create_new};
use crate::http::HttpError;
use crate::rights::on_behalf_of;
use crate::users::User;

/// The largest body that is kept in memory until it is complete.
const MAX_BUFFERED: usize = 16 << 20;

/// Takes the contents of one file. The upload is undone if this is dropped before [`Self::finish`].
pub(super) struct IncomingFile<'a> {
    path: PathBuf,
    user: &'a User,
    metadata: &'a BTreeMap<String, String>,
    turn: Turn,
    state: State,
}

enum State {
    /// The file did not exist before.
    New(File),
    /// The file exists; the new contents wait here.
    Buffered(Vec<u8>),
    /// The file existed. The new contents are complete, or too large to wait in memory.
    InPlace(File),
    /// A later upload to the same path has written to the file, as if this one had finished before it.
    Overwritten,
}

impl<'a> IncomingFile<'a> {
    /// Opens the file for the user. Later writes need only the descriptor.
    pub(super) fn start(
        path: PathBuf,
        user: &'a User,
        metadata: &'a BTreeMap<String, String>,
    ) -> Result<Self, HttpError> {
        let turn = Turn::enter(&path);
        let state = match turn.write() {
            None => State::Overwritten,
            Some(mut writing) => match on_behalf_of(user, || create_new(&path, user, metadata))? {
                None => State::Buffered(Vec::new()),
                Some(new) => {
                    writing.overwrite();
                    State::New(new)
                }
            },
        };
        Ok(Self { path, user, metadata, turn, state })
    }

    pub(super) fn write(&mut self, data: &[u8]) -> Result<(), HttpError> {
        match &mut self.state {
            State::New(file) | State::InPlace(file) => {
                let Some(_writing) = self.turn.write() else { return Ok(()) };
                file.write_all(data).map_err(|error| failed("error writing file", &self.path, &error))
            }
            State::Buffered(buffered) if buffered.len() + data.len() <= MAX_BUFFERED => {
                buffered.extend_from_slice(data);
                Ok(())
            }
            State::Buffered(_) => {
                self.write_buffered()?;
                self.write(data)
            }
            State::Overwritten => Ok(()),
        }
    }

    /// All contents have arrived. Returns the path.
    pub(super) fn finish(mut self) -> Result<PathBuf, HttpError> {
        if let State::Buffered(_) = self.state {
            self.write_buffered()?;
        }
        // Nothing is left to undo.
        self.state = State::Overwritten;
        Ok(std::mem::take(&mut self.path))
    }

    /// Replaces the old contents under one lock, so that no other upload writes in between.
    fn write_buffered(&mut self) -> Result<(), HttpError> {
        let State::Buffered(buffered) = std::mem::replace(&mut self.state, State::Overwritten) else { return Ok(()) };
        let Some(mut writing) = self.turn.write() else { return Ok(()) };
        writing.overwrite();
        let mut file = on_behalf_of(self.user, || create(&self.path, self.user, self.metadata))?;
        let written = file.write_all(&buffered).map_err(|error| failed("error writing file", &self.path, &error));
        self.state = State::InPlace(file);
        written
    }
}

impl Drop for IncomingFile<'_> {
    fn drop(&mut self) {
        if let (State::New(file), Some(_writing)) = (&self.state, self.turn.write()) {
            // The file is incomplete. If it cannot be removed, there is no one to tell.
            let _ = on_behalf_of(self.user, || remove_if_same(&self.path, file));
        }
    }
}

/// Removes the file unless another one has taken its place.
fn remove_if_same(path: &Path, file: &File) -> Result<(), HttpError> {
    let remove = || {
        let (here, ours) = (path.symlink_metadata()?, file.metadata()?);
        match (here.dev(), here.ino()) == (ours.dev(), ours.ino()) {
            true => std::fs::remove_file(path),
            false => Ok(()),
        }
    };
    remove().map_err(|error| failed("error removing file", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = MAX_BUFFERED + 1;

    fn me() -> User {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        User { name: "me".to_owned(), uid, gid, home: "/".to_owned(), shell: "/bin/sh".to_owned() }
    }

    /// Two uploads to the same path. The first one has sent `first` when the second starts, and sends it again after the second
    /// has finished.
    fn overlap(existing: bool, first: &[u8], finishes: bool) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (path, user, metadata) = (folder.path().join("file"), me(), BTreeMap::new());
        if existing {
            std::fs::write(&path, "before").unwrap();
        }
        let mut early = IncomingFile::start(path.clone(), &user, &metadata).unwrap();
        early.write(first).unwrap();
        let mut late = IncomingFile::start(path.clone(), &user, &metadata).unwrap();
        late.write(b"the last one").unwrap();
        late.finish().unwrap();
        early.write(first).unwrap();
        match finishes {
            true => drop(early.finish().unwrap()),
            false => drop(early),
        }
        std::fs::read(&path).unwrap()
    }

    #[test]
    fn an_upload_that_continues_does_not_overwrite_a_later_one() {
        assert_eq!(overlap(false, b"a new file", true), b"the last one");
        assert_eq!(overlap(true, b"held back", true), b"the last one");
        assert_eq!(overlap(true, &vec![1; LARGE], true), b"the last one");
    }

    #[test]
    fn an_upload_that_is_aborted_does_not_remove_a_later_one() {
        assert_eq!(overlap(false, b"a new file", false), b"the last one");
        assert_eq!(overlap(true, b"held back", false), b"the last one");
        assert_eq!(overlap(true, &vec![1; LARGE], false), b"the last one");
    }
}
