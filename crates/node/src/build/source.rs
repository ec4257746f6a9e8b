//! Where copied files come from: a context, an archive that was unpacked, or another stage.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use isopod_image::dockerfile::{IgnoreRules, glob_matches};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use sha2::{Digest, Sha256};

use super::stack::hex;
use super::view::View;

/// Deeper than any honest tree, and few enough that we never run out of descriptors.
const DEEPEST: usize = 128;

/// Files to copy from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) view: View,
    /// Stays out.
    pub(super) ignore: IgnoreRules,
    /// Stays out as well.
    pub(super) exclude: Vec<String>,
}

/// Is shown every file.
pub(super) trait Visit {
    fn directory(&mut self, path: &Path, stat: &Stat) -> io::Result<()>;
    fn file(&mut self, path: &Path, stat: &Stat, content: &mut File) -> io::Result<()>;
    fn link(&mut self, path: &Path, stat: &Stat, target: &std::ffi::OsStr) -> io::Result<()>;
}

impl Source {
    /// The paths that a name or pattern means, sorted. None is not an error here.
    pub(super) fn matches(&self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        let pattern = normal(pattern);
        let text = pattern.to_string_lossy().into_owned();
        if !text.contains(['*', '?', '[']) {
            let found = self.view.open(&pattern, OFlags::PATH).is_ok() && !self.is_ignored(&pattern);
            return Ok(found.then_some(pattern).into_iter().collect());
        }
        let mut found = Vec::new();
        if text.contains("**") {
            self.walk_names(Path::new(""), &text, &mut found, DEEPEST)?;
        } else {
            self.match_parts(Path::new(""), &text.split('/').collect::<Vec<_>>(), &mut found)?;
        }
        found.sort();
        Ok(found)
    }

    fn match_parts(&self, at: &Path, parts: &[&str], found: &mut Vec<PathBuf>) -> io::Result<()> {
        let [part, rest @ ..] = parts else { return Ok(()) };
        for name in self.names(at)? {
            let path = at.join(&name);
            if !glob_matches(part, &name) || self.is_ignored(&path) {
                continue;
            }
            match rest {
                [] => found.push(path),
                _ if self.view.is_directory(&path) => self.match_parts(&path, rest, found)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn walk_names(&self, at: &Path, pattern: &str, found: &mut Vec<PathBuf>, depth: usize) -> io::Result<()> {
        let Some(deeper) = depth.checked_sub(1) else { return Ok(()) };
        for name in self.names(at)? {
            let path = at.join(&name);
            if glob_matches(pattern, &path.to_string_lossy()) && !self.is_ignored(&path) {
                found.push(path.clone());
            }
            let is_link = self.view.open(&path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|file| Ok(fstat(file)?));
            if is_link.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
                self.walk_names(&path, pattern, found, deeper)?;
            }
        }
        Ok(())
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        let directory = self.view.open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        sorted_names(&directory)
    }

    fn is_ignored(&self, path: &Path) -> bool {
        let text = path.to_string_lossy();
        self.ignore.ignores(&text) || self.exclude.iter().any(|pattern| glob_matches(pattern, &text))
    }

    /// Shows a file, or a directory with all that is in it, under paths that begin with nothing.
    pub(super) fn visit(&self, path: &Path, visit: &mut dyn Visit) -> io::Result<()> {
        let file = self.view.open(path, OFlags::PATH)?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = self.view.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                visit.directory(Path::new(""), &stat)?;
                self.visit_directory(&directory, path, Path::new(""), visit, DEEPEST)
            }
            FileType::RegularFile => {
                let file = self.view.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
                if !self.view.is_own(&file)? {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not part of the template"));
                }
                visit.file(Path::new(""), &stat, &mut File::from(file))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a directory")),
        }
    }

    fn visit_directory(
        &self,
        directory: &OwnedFd,
        at: &Path,
        shown: &Path,
        visit: &mut dyn Visit,
        depth: usize,
    ) -> io::Result<()> {
        if !self.view.is_own(directory)? {
            return Ok(());
        }
        let too_deep = || io::Error::new(io::ErrorKind::InvalidInput, "directories are nested too deeply");
        let deeper = depth.checked_sub(1).ok_or_else(too_deep)?;
        for name in sorted_names(directory)? {
            let (path, shown) = (at.join(&name), shown.join(&name));
            let is_ignored = self.is_ignored(&path);
            if is_ignored && !self.ignore.has_exceptions() {
                continue;
            }
            let stat = statat(directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    if !is_ignored {
                        visit.directory(&shown, &stat)?;
                    }
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let below = openat(directory, name.as_str(), flags, Mode::empty())?;
                    self.visit_directory(&below, &path, &shown, visit, deeper)?;
                }
                _ if is_ignored => {}
                FileType::RegularFile => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    let mut file = File::from(openat(directory, name.as_str(), flags, Mode::empty())?);
                    visit.file(&shown, &stat, &mut file)?;
                }
                FileType::Symlink => {
                    let target = readlinkat(directory, name.as_str(), Vec::new())?;
                    visit.link(&shown, &stat, std::ffi::OsStr::from_bytes(target.to_bytes()))?;
                }
                // Sockets, FIFOs and devices of a context are of nobody's use in a template.
                _ => {}
            }
        }
        Ok(())
    }

    /// A text that stands for the names, permissions and contents of these paths.
    pub(super) fn digest(&self, paths: &[PathBuf]) -> io::Result<String> {
        let mut hasher = Hasher(Sha256::new());
        for path in paths {
            hasher.part(path.as_os_str().as_bytes());
            self.visit(path, &mut hasher)?;
        }
        Ok(hex(&hasher.0.finalize()))
    }
}

fn sorted_names(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) => names.push(name.to_owned()),
            Err(_) => {
                let name = entry.file_name().to_string_lossy().into_owned();
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the name {name:?} is not UTF-8")));
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A path below the top, whatever it says.
fn normal(path: &str) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => drop(normal.pop()),
            _ => {}
        }
    }
    normal
}

struct Hasher(Sha256);

impl Hasher {
    fn part(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn head(&mut self, kind: &str, path: &Path, stat: &Stat) {
        self.part(kind.as_bytes());
        self.part(path.as_os_str().as_bytes());
        self.part(&(stat.st_mode & 0o7777).to_le_bytes());
    }
}

impl Visit for Hasher {
    fn directory(&mut self, path: &Path, stat: &Stat) -> io::Result<()> {
        self.head("d", path, stat);
        Ok(())
    }

    fn file(&mut self, path: &Path, stat: &Stat, content: &mut File) -> io::Result<()> {
        self.head("f", path, stat);
        let bytes = io::copy(content, &mut self.0)?;
        self.0.update(bytes.to_le_bytes());
        Ok(())
    }

    fn link(&mut self, path: &Path, stat: &Stat, target: &std::ffi::OsStr) -> io::Result<()> {
        self.head("l", path, stat);
        self.part(target.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(root: &Path, ignore: &str) -> Source {
        Source { view: View::of_directory(root).unwrap(), ignore: IgnoreRules::parse(ignore), exclude: Vec::new() }
    }

    #[test]
    fn patterns_find_what_is_not_ignored_and_nothing_outside() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("in/d/e")).unwrap();
        for name in ["outside.py", "in/a.py", "in/b.txt", "in/d/c.py", "in/d/e/f.py"] {
            std::fs::write(root.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("..", root.path().join("in/up")).unwrap();
        let source = source(&root.path().join("in"), "d/c.py");
        let found = |pattern: &str| -> Vec<String> {
            source.matches(pattern).unwrap().iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(found("*.py"), ["a.py"]);
        assert_eq!(found("./a.py"), ["a.py"]);
        assert_eq!(found("/../../outside.py"), Vec::<String>::new());
        assert_eq!(found("up/outside.py"), Vec::<String>::new());
        assert_eq!(found("**/*.py"), ["a.py", "d/e/f.py"]);
        assert_eq!(found("d/*"), ["d/e"]);
        assert_eq!(found("d/c.py"), Vec::<String>::new());
    }

    #[test]
    fn a_digest_changes_with_contents_and_modes_and_survives_sockets_and_loops() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "1").unwrap();
        std::os::unix::fs::symlink("loop", root.path().join("loop")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        let digest = || source(root.path(), "").digest(&[PathBuf::new()]).unwrap();
        let first = digest();
        assert_eq!(digest(), first);
        std::fs::write(root.path().join("a"), "2").unwrap();
        let second = digest();
        assert_ne!(second, first);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(root.path().join("a"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(digest(), second);
        assert!(source(root.path(), "").visit(Path::new("loop"), &mut Hasher(Sha256::new())).is_err());
    }
}
