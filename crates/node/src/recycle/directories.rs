//! Recycles the directories of ended sandboxes.
//!
//! ext4 does not reuse the inode number of a removed file for some seconds, and checks every such number whenever a
//! file is created. With hundreds of short-lived sandboxes, most of the cost of a record was that search. So a
//! directory is kept with its files and renamed. Nothing in it is read again, and its files are overwritten.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::guest_request::GUEST_SOCKET;
use crate::record::put_aside;

/// How many directories are kept.
const MAX_IDLE: usize = 16;

/// The directories that a home keeps for its next sandboxes.
#[derive(Debug, Default)]
pub(crate) struct RecycledDirectories {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Where they are kept. If it is not set, none are kept.
    directory: Option<PathBuf>,
    kept: Vec<PathBuf>,
}

impl RecycledDirectories {
    /// Starts keeping directories in `directory`. Removes what an earlier process left there.
    pub(crate) fn open(&self, directory: &Path) -> io::Result<()> {
        remove_all(directory)?;
        fs::create_dir(directory)?;
        self.idle().directory = Some(directory.to_owned());
        Ok(())
    }

    /// Renames a kept directory to `path`. Returns false if there is none.
    pub(crate) fn take(&self, path: &Path) -> bool {
        let kept = self.idle().kept.pop();
        // If it is gone, the caller creates a new one.
        kept.is_some_and(|kept| fs::rename(kept, path).is_ok())
    }

    /// Removes a directory, or keeps it for the next sandbox. It is not an error if it does not exist.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        match self.keep(path) {
            true => Ok(()),
            false => remove_all(path),
        }
    }

    fn keep(&self, path: &Path) -> bool {
        let mut idle = self.idle();
        let (Some(directory), Some(name)) = (&idle.directory, path.file_name()) else { return false };
        if idle.kept.len() >= MAX_IDLE {
            return false;
        }
        let kept = directory.join(name);
        let cleared = fs::remove_file(path.join(GUEST_SOCKET)).and_then(|()| put_aside(path));
        if cleared.and_then(|()| fs::rename(path, &kept)).is_err() {
            return false;
        }
        idle.kept.push(kept);
        true
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RecycledDirectories {
    fn drop(&mut self) {
        if let Some(directory) = self.idle().directory.take() {
            // The next server removes it when it starts.
            let _ = remove_all(&directory);
        }
    }
}

fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use isopod_wire::Limits;

    use super::*;
    use crate::record::Record;

    #[test]
    fn a_recycled_directory_has_no_record_until_it_gets_one() {
        let home = tempfile::tempdir().unwrap();
        let (old, new) = (home.path().join("old"), home.path().join("new"));
        let directories = RecycledDirectories::default();
        directories.open(&home.path().join("spare")).unwrap();
        assert!(!directories.take(&new));

        fs::create_dir(&old).unwrap();
        let record = |name: &str| Record::new(name.parse().unwrap(), "base", "g", Limits::default());
        for _ in 0..3 {
            record("old").save(&old).unwrap();
        }
        fs::write(old.join(GUEST_SOCKET), "").unwrap();
        directories.remove(&old).unwrap();
        assert!(!old.exists());

        assert!(directories.take(&new));
        assert!(Record::load(&new).is_err());
        assert!(!new.join(GUEST_SOCKET).exists());
        for _ in 0..3 {
            record("new").save(&new).unwrap();
            assert_eq!(Record::load(&new).unwrap().execution.as_str(), "new");
        }
        drop(directories);
        assert!(!home.path().join("spare").exists());
    }

    #[test]
    fn without_a_place_and_when_there_are_enough_they_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let directories = RecycledDirectories::default();
        let make = |name: usize| {
            let path = home.path().join(name.to_string());
            fs::create_dir(&path).unwrap();
            fs::write(path.join(GUEST_SOCKET), "").unwrap();
            Record::new("x".parse().unwrap(), "base", "g", Limits::default()).save(&path).unwrap();
            path
        };
        directories.remove(&make(0)).unwrap();
        directories.remove(&home.path().join("0")).unwrap();
        directories.open(&home.path().join("spare")).unwrap();
        (1..=MAX_IDLE + 3).for_each(|name| directories.remove(&make(name)).unwrap());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(home.path().join("spare")).unwrap().count(), MAX_IDLE);
    }
}
