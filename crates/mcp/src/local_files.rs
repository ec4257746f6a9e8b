//! The files of this machine that `upload` and `download` may use: those below one directory, without hidden ones.
//!
//! What a sandbox wrote may talk the agent into sending files away. Hidden files and directories hold keys, settings and
//! programs that others run (`.ssh`, `.env`, `.git/hooks`), so they are never read or written.

use std::io;
use std::path::{Component, Path, PathBuf};

use tokio::fs::{self, File, OpenOptions};

use crate::tool_error::ToolError;

/// The directory whose files the client may use.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    root: PathBuf,
}

/// Why a directory can't be the root of local files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// It can't be opened.
    #[error("could not open {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    /// Everything would be below it.
    #[error("the root directory cannot be used for uploads and downloads")]
    Everything,
}

impl LocalFiles {
    /// Allows the files below this directory.
    ///
    /// # Errors
    /// If it doesn't exist, or is `/`.
    pub fn below(root: &Path) -> Result<Self, RootError> {
        let found = root.canonicalize().map_err(|error| RootError::Open(root.to_owned(), error))?;
        match found.parent() {
            Some(_) => Ok(Self { root: found }),
            None => Err(RootError::Everything),
        }
    }

    /// Opens a file to read, and returns its size.
    pub(crate) async fn open(&self, path: &str) -> Result<(File, u64), ToolError> {
        let wanted = self.root.join(path);
        let found = fs::canonicalize(&wanted).await.map_err(|error| failed("could not open", path, &error))?;
        self.check(&found)?;
        let file = File::open(&found).await.map_err(|error| failed("could not open", path, &error))?;
        let metadata = file.metadata().await.map_err(|error| failed("could not open", path, &error))?;
        if !metadata.is_file() {
            return Err(ToolError::new(format!("{path} is not a regular file")).hint("pack directories with tar first"));
        }
        Ok((file, metadata.len()))
    }

    /// A new file that takes its place when it is complete.
    pub(crate) async fn create(&self, path: &str, overwrite: bool) -> Result<NewFile, ToolError> {
        let wanted = self.root.join(path);
        let (Some(parent), Some(name)) = (wanted.parent(), wanted.file_name()) else {
            return Err(ToolError::new(format!("{path} is not the path of a file")));
        };
        let parent =
            fs::canonicalize(parent).await.map_err(|error| failed("could not open the directory of", path, &error))?;
        let target = parent.join(name);
        self.check(&target)?;
        if fs::symlink_metadata(&target).await.is_ok() && !overwrite {
            return Err(ToolError::new(format!("{path} exists already")).hint("choose another path, or set overwrite"));
        }
        let part = parent.join(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
        let options = OpenOptions::new().write(true).create_new(true).clone();
        let file = options.open(&part).await.map_err(|error| failed("could not write", path, &error))?;
        Ok(NewFile { file, part: Some(part), target })
    }

    fn check(&self, path: &Path) -> Result<(), ToolError> {
        let root = self.root.display();
        let Ok(below) = path.strip_prefix(&self.root) else {
            return Err(ToolError::new(format!("{} is outside of {root}", path.display())).hint(format!(
                "only files below {root} can be used; the user can choose another directory with --local-root"
            )));
        };
        let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
        match below.components().any(is_hidden) {
            true => Err(ToolError::new(format!("{} is hidden", below.display()))
                .hint("files and directories whose names start with a dot are never used; ask the user to copy it")),
            false => Ok(()),
        }
    }
}

/// A file that is being written. If it isn't completed, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: File,
    part: Option<PathBuf>,
    target: PathBuf,
}

impl NewFile {
    /// Puts it in its place. A link there is replaced, not followed.
    pub(crate) async fn complete(mut self) -> Result<PathBuf, ToolError> {
        let target = self.target.clone();
        let name = target.display().to_string();
        self.file.sync_all().await.map_err(|error| failed("could not write", &name, &error))?;
        if let Some(part) = &self.part {
            fs::rename(part, &target).await.map_err(|error| failed("could not write", &name, &error))?;
        }
        self.part = None;
        Ok(target)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = std::fs::remove_file(part);
        }
    }
}

pub(crate) fn failed(what: &str, path: &str, error: &io::Error) -> ToolError {
    ToolError::new(format!("{what} {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn rooted() -> (tempfile::TempDir, LocalFiles) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("project/.git")).unwrap();
        for name in ["outside", "project/.env", "project/.git/config", "project/plain"] {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("../outside", directory.path().join("project/link")).unwrap();
        let files = LocalFiles::below(&directory.path().join("project")).unwrap();
        (directory, files)
    }

    #[tokio::test]
    async fn only_plain_files_below_the_root_are_read() {
        let (directory, files) = rooted();
        let absolute = directory.path().join("outside").display().to_string();
        for bad in ["../outside", "link", ".env", ".git/config", "no-such", ".", "/etc/passwd", absolute.as_str()] {
            assert!(files.open(bad).await.is_err(), "{bad}");
        }
        assert_eq!(files.open("plain").await.unwrap().1, 13);
        let inside = directory.path().canonicalize().unwrap().join("project/plain").display().to_string();
        assert!(files.open(&inside).await.is_ok());
    }

    #[tokio::test]
    async fn only_plain_files_below_the_root_are_written() {
        let (directory, files) = rooted();
        for bad in ["../other", "/tmp/other", ".bashrc", ".git/hooks", "no-such/other", "..", "", "plain", "link"] {
            assert!(files.create(bad, false).await.is_err(), "{bad}");
        }
        let mut new = files.create("link", true).await.unwrap();
        new.file.write_all(b"new").await.unwrap();
        new.file.flush().await.unwrap();
        new.complete().await.unwrap();
        assert_eq!(std::fs::read(directory.path().join("project/link")).unwrap(), b"new");
        assert_eq!(std::fs::read(directory.path().join("outside")).unwrap(), b"outside", "links are not followed");
    }

    #[tokio::test]
    async fn what_is_not_completed_leaves_nothing() {
        let (directory, files) = rooted();
        let count = || std::fs::read_dir(directory.path().join("project")).unwrap().count();
        let before = count();
        drop(files.create("new", false).await.unwrap());
        assert_eq!(count(), before);
    }

    #[test]
    fn the_whole_machine_is_no_root() {
        assert!(LocalFiles::below(Path::new("/")).is_err());
    }
}
