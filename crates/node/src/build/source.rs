//! The sources of copied files: a context, an unpacked archive, or another stage.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use isopod_image::dockerfile::{IgnoreRules, Pattern, Patterns, read_pattern};
use isopod_image::unpack::Quota;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use sha2::{Digest, Sha256};

use super::view::View;

/// Deeper than any reasonable tree, and few enough not to run out of descriptors.
const MAX_DEPTH: usize = 128;

/// How many names a pattern may visit. A pattern follows links, so without a limit a few links to `.` would multiply
/// with each `*`.
const MAX_VISITED: u32 = 1_000_000;
/// The limit on the memory for the paths that a pattern matches.
const MAX_FOUND_BYTES: usize = 64 << 20;

/// Files to copy from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) view: View,
    /// From `.dockerignore`.
    pub(super) ignore: IgnoreRules,
    /// From `--exclude`.
    pub(super) exclude: Patterns,
    pub(super) top_links: TopLinks,
}

/// How to treat a source that is itself a link. Links below a source are always copied as links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopLinks {
    /// Follow it, as Docker does. A dangling link stays a link.
    Followed,
    /// Copy the link, as E2B's builder does.
    Kept,
}

/// Called for every file of a source.
pub(super) trait Visit {
    fn directory(&mut self, path: &Path, stat: &Stat) -> io::Result<()>;
    fn file(&mut self, path: &Path, stat: &Stat, content: &mut File) -> io::Result<()>;
    fn link(&mut self, path: &Path, stat: &Stat, target: &std::ffi::OsStr) -> io::Result<()>;
}

/// The state of matching a pattern.
struct Search<'a> {
    quota: &'a Quota,
    found: Vec<PathBuf>,
    /// The total length of the paths in `found`.
    found_bytes: usize,
    budget: u32,
}

impl Search<'_> {
    fn add(&mut self, path: PathBuf) -> io::Result<()> {
        self.found_bytes += path.as_os_str().len();
        if self.found_bytes > MAX_FOUND_BYTES {
            let what = format!("the paths that the pattern matches have more than {MAX_FOUND_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.found.push(path);
        Ok(())
    }

    /// Counts a name. Call it before visiting one.
    fn count(&mut self) -> io::Result<()> {
        self.quota.check()?;
        self.budget = self.budget.checked_sub(1).ok_or_else(too_many)?;
        Ok(())
    }
}

impl Source {
    /// All files of a tree.
    pub(super) fn of(view: View) -> Self {
        Self { view, ignore: IgnoreRules::default(), exclude: Patterns::default(), top_links: TopLinks::Followed }
    }

    /// The sorted paths that a name or pattern matches. No match is not an error here.
    pub(super) fn matches(&self, pattern: &str, quota: &Quota) -> io::Result<Vec<PathBuf>> {
        let pattern = normal(pattern);
        let text = pattern.to_string_lossy().into_owned();
        if !text.contains(['*', '?', '[']) {
            let found = self.view.open(&pattern, OFlags::PATH).is_ok() && !self.is_ignored(&pattern);
            return Ok(found.then_some(pattern).into_iter().collect());
        }
        let read = |text: &str| read_pattern(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error));
        let mut search = Search { quota, found: Vec::new(), found_bytes: 0, budget: MAX_VISITED };
        if text.contains("**") {
            self.walk_names(Path::new(""), &read(&text)?, &mut search, MAX_DEPTH)?;
        } else {
            let parts = text.split('/').map(read).collect::<io::Result<Vec<_>>>()?;
            self.match_parts(Path::new(""), &parts, &mut search)?;
        }
        let mut found = search.found;
        found.sort();
        Ok(found)
    }

    fn match_parts(&self, at: &Path, parts: &[Pattern], search: &mut Search<'_>) -> io::Result<()> {
        let [part, rest @ ..] = parts else { return Ok(()) };
        for name in self.names(at, search)? {
            let path = at.join(&name);
            search.quota.check()?;
            if !part.matches(&name) || self.is_ignored(&path) {
                continue;
            }
            match rest {
                [] if self.is_special(&path) => {}
                [] => search.add(path)?,
                _ if self.view.is_directory(&path) => self.match_parts(&path, rest, search)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn walk_names(&self, at: &Path, pattern: &Pattern, search: &mut Search<'_>, depth: usize) -> io::Result<()> {
        let Some(deeper) = depth.checked_sub(1) else { return Ok(()) };
        for name in self.names(at, search)? {
            let path = at.join(&name);
            search.quota.check()?;
            if pattern.matches(&path.to_string_lossy()) && !self.is_ignored(&path) && !self.is_special(&path) {
                search.add(path.clone())?;
            }
            let is_link = self.view.open(&path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|file| Ok(fstat(file)?));
            if is_link.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
                self.walk_names(&path, pattern, search, deeper)?;
            }
        }
        Ok(())
    }

    fn names(&self, directory: &Path, search: &mut Search<'_>) -> io::Result<Vec<String>> {
        let directory = self.view.open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        sorted_names(&directory, || search.count())
    }

    /// Whether it is a socket, FIFO or device. Patterns skip those, as copying a directory does.
    fn is_special(&self, path: &Path) -> bool {
        let stat = self.view.open(path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|file| Ok(fstat(file)?));
        let ordinary = [FileType::RegularFile, FileType::Directory, FileType::Symlink];
        stat.is_ok_and(|stat| !ordinary.contains(&FileType::from_raw_mode(stat.st_mode)))
    }

    fn is_ignored(&self, path: &Path) -> bool {
        let text = path.to_string_lossy();
        self.ignore.ignores(&text) || self.exclude.match_any(&text)
    }

    /// Opens a regular file of the tree. Links are resolved within the tree. Always open files of a context this way: a
    /// link resolved on the host could lead anywhere.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        // Non-blocking, so that a FIFO cannot hang us.
        self.own_file(self.view.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?)
    }

    fn own_file(&self, file: OwnedFd) -> io::Result<File> {
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        if !self.view.is_own(&file)? {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not part of the template"));
        }
        Ok(File::from(file))
    }

    /// Visits a file, or a directory and everything in it. Paths are relative to `path`.
    pub(super) fn visit(&self, path: &Path, visit: &mut dyn Visit, quota: &Quota) -> io::Result<()> {
        let file = self.open_top(path)?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = self.view.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                visit.directory(Path::new(""), &stat)?;
                let mut bounded = BoundedVisit { visit, quota };
                self.visit_directory(&directory, path, Path::new(""), &mut bounded, MAX_DEPTH)
            }
            FileType::RegularFile => visit.file(Path::new(""), &stat, &mut self.open_file(path)?),
            FileType::Symlink => {
                let target = readlinkat(&file, "", Vec::new())?;
                visit.link(Path::new(""), &stat, std::ffi::OsStr::from_bytes(target.to_bytes()))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a directory")),
        }
    }

    /// Whether a source is a directory, following a link as `top_links` says.
    pub(super) fn is_directory(&self, path: &Path) -> bool {
        let stat = self.open_top(path).and_then(|file| Ok(fstat(file)?));
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn open_top(&self, path: &Path) -> io::Result<OwnedFd> {
        let itself = || self.view.open(path, OFlags::PATH | OFlags::NOFOLLOW);
        match self.top_links {
            TopLinks::Kept => itself(),
            TopLinks::Followed => self.view.open(path, OFlags::PATH).or_else(|_| itself()),
        }
    }

    fn visit_directory(
        &self,
        directory: &OwnedFd,
        at: &Path,
        shown: &Path,
        bounded: &mut BoundedVisit<'_>,
        depth: usize,
    ) -> io::Result<()> {
        if !self.view.is_own(directory)? {
            return Ok(());
        }
        let too_deep = || io::Error::new(io::ErrorKind::InvalidInput, "directories are nested too deeply");
        let deeper = depth.checked_sub(1).ok_or_else(too_deep)?;
        for name in sorted_names(directory, || Ok(bounded.quota.take_entry()?))? {
            bounded.quota.check()?;
            let (path, shown) = (at.join(&name), shown.join(&name));
            let is_ignored = self.is_ignored(&path);
            if is_ignored && !self.ignore.has_exceptions() {
                continue;
            }
            let stat = statat(directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    if !is_ignored {
                        bounded.visit.directory(&shown, &stat)?;
                    }
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let below = openat(directory, name.as_str(), flags, Mode::empty())?;
                    self.visit_directory(&below, &path, &shown, bounded, deeper)?;
                }
                _ if is_ignored => {}
                FileType::RegularFile => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    let mut file = self.own_file(openat(directory, name.as_str(), flags, Mode::empty())?)?;
                    bounded.visit.file(&shown, &stat, &mut file)?;
                }
                FileType::Symlink => {
                    let target = readlinkat(directory, name.as_str(), Vec::new())?;
                    bounded.visit.link(&shown, &stat, std::ffi::OsStr::from_bytes(target.to_bytes()))?;
                }
                // Sockets, FIFOs and devices are useless in a template.
                _ => {}
            }
        }
        Ok(())
    }

    /// A digest of the names, modes and contents of these paths.
    pub(super) fn digest(&self, paths: &[PathBuf], quota: &Quota) -> io::Result<String> {
        let mut hasher = Hasher { hash: Sha256::new(), quota };
        for path in paths {
            hasher.part(path.as_os_str().as_bytes());
            self.visit(path, &mut hasher, quota)?;
        }
        Ok(hex::encode(hasher.hash.finalize()))
    }
}

/// A visitor and its quota.
struct BoundedVisit<'a> {
    visit: &'a mut dyn Visit,
    quota: &'a Quota,
}

fn too_many() -> io::Error {
    let what = format!("the pattern visits more than {MAX_VISITED} files");
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// The sorted names in a directory. Calls `count` before each name is kept.
fn sorted_names(directory: &OwnedFd, mut count: impl FnMut() -> io::Result<()>) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) => {
                count()?;
                names.push(name.to_owned());
            }
            Err(_) => {
                let name = entry.file_name().to_string_lossy().into_owned();
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the name {name:?} is not UTF-8")));
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The part of a pattern before the first wildcard component: `src` for `src/*.py`, nothing for `*.py`, all of a plain
/// path.
pub(super) fn fixed_part(pattern: &str) -> PathBuf {
    let mut fixed = Vec::new();
    for part in pattern.split('/') {
        let mut name = String::new();
        let mut letters = part.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '*' | '?' | '[' | '{' => return normal(&fixed.join("/")),
                '\\' => name.extend(letters.next()),
                letter => name.push(letter),
            }
        }
        fixed.push(name);
    }
    normal(&fixed.join("/"))
}

/// Normalises a path so that it stays below the root.
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

struct Hasher<'a> {
    hash: Sha256,
    quota: &'a Quota,
}

impl Hasher<'_> {
    fn part(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    fn head(&mut self, kind: &str, path: &Path, stat: &Stat) {
        self.part(kind.as_bytes());
        self.part(path.as_os_str().as_bytes());
        self.part(&(stat.st_mode & 0o7777).to_le_bytes());
    }
}

impl Visit for Hasher<'_> {
    fn directory(&mut self, path: &Path, stat: &Stat) -> io::Result<()> {
        self.head("d", path, stat);
        Ok(())
    }

    fn file(&mut self, path: &Path, stat: &Stat, content: &mut File) -> io::Result<()> {
        self.head("f", path, stat);
        let bytes = self.quota.copy(content, &mut self.hash)?;
        self.hash.update(bytes.to_le_bytes());
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
    use isopod_image::unpack::Bounds;

    use super::*;

    fn source(root: &Path, ignore: &str) -> Source {
        Source { ignore: IgnoreRules::parse(ignore).unwrap(), ..Source::of(View::of_directory(root).unwrap()) }
    }

    fn unlimited() -> Quota {
        Quota::new(Bounds::default())
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
            source.matches(pattern, &unlimited()).unwrap().iter().map(|path| path.display().to_string()).collect()
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
    fn a_file_is_opened_inside_whatever_its_link_says() {
        let root = tempfile::tempdir().unwrap();
        let (context, hosts) = (root.path().join("context"), root.path().join("backup.tar"));
        let inside = context.join(hosts.strip_prefix("/").unwrap());
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::write(&hosts, "the host's").unwrap();
        std::fs::write(&inside, "the context's").unwrap();
        std::os::unix::fs::symlink(&hosts, context.join("a.tar")).unwrap();
        std::os::unix::fs::symlink("../backup.tar", context.join("b.tar")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, context.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        // Joining the path would follow the link on the host.
        assert_eq!(std::fs::read_to_string(context.join("a.tar")).unwrap(), "the host's");

        let source = source(&context, "");
        let text = io::read_to_string(source.open_file(Path::new("a.tar")).unwrap()).unwrap();
        assert_eq!(text, "the context's");
        for none in ["b.tar", "fifo", ""] {
            assert!(source.open_file(Path::new(none)).is_err(), "{none:?}");
        }
    }

    #[test]
    fn a_pattern_over_links_to_their_own_directory_ends() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..10 {
            std::os::unix::fs::symlink(".", root.path().join(format!("link{number}"))).unwrap();
        }
        let source = source(root.path(), "");
        assert_eq!(source.matches("*/*/*", &unlimited()).unwrap().len(), 1000);
        let error = source.matches("*/*/*/*/*/*/*/*/*/*/*/*", &unlimited()).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn patterns_have_limits_and_stop_when_they_are_told_to() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..10 {
            std::fs::create_dir(root.path().join(format!("d{number}"))).unwrap();
        }
        let source = source(root.path(), "");
        let error = source.matches(&format!("{}x", "*".repeat(5000)), &unlimited()).unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
        for pattern in ["**/x", "*"] {
            let asked = std::sync::atomic::AtomicU32::new(0);
            let stop = Quota::new(Bounds::default()).stopped_by(move || {
                (asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 5).then(|| "enough".to_owned())
            });
            assert_eq!(source.matches(pattern, &stop).unwrap_err().to_string(), "enough", "{pattern}");
        }
        let mut search = Search { quota: &unlimited(), found: Vec::new(), found_bytes: 0, budget: 9 };
        let error = source.walk_names(Path::new(""), &Pattern::new("**"), &mut search, MAX_DEPTH).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
        let mut search = Search { quota: &unlimited(), found: Vec::new(), found_bytes: MAX_FOUND_BYTES, budget: 9 };
        assert!(search.add("x".into()).is_err());
        let few = Quota::new(Bounds { entries: 9, ..Bounds::default() });
        assert!(source.digest(&[PathBuf::new()], &few).is_err());
    }

    #[test]
    fn a_digest_changes_with_contents_and_modes_and_survives_sockets_and_loops() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "1").unwrap();
        std::os::unix::fs::symlink("loop", root.path().join("loop")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        let digest = || source(root.path(), "").digest(&[PathBuf::new()], &unlimited()).unwrap();
        let first = digest();
        assert_eq!(digest(), first);
        std::fs::write(root.path().join("a"), "2").unwrap();
        let second = digest();
        assert_ne!(second, first);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(root.path().join("a"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(digest(), second);
        // As a plain path, the link resolves to nothing. A pattern matches the link itself and skips the socket.
        let source = source(root.path(), "");
        assert_eq!(source.matches("loop", &unlimited()).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(source.matches("*", &unlimited()).unwrap(), ["a", "loop"].map(PathBuf::from));
        assert_eq!(source.matches("**", &unlimited()).unwrap(), ["a", "loop"].map(PathBuf::from));
        let of_link = || source.digest(&["loop".into()], &unlimited()).unwrap();
        let before = of_link();
        std::fs::remove_file(root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.path().join("loop")).unwrap();
        assert_ne!(of_link(), before);
        assert!(source.digest(&["missing".into()], &unlimited()).is_err());
    }

    #[test]
    fn the_fixed_part_of_a_pattern_ends_before_its_first_sign() {
        for (pattern, fixed) in [
            ("a.txt", "a.txt"),
            ("./a/b/", "a/b"),
            (".", ""),
            ("*.txt", ""),
            ("folder/*", "folder"),
            ("src/lib*/x", "src"),
            ("src/**/*.py", "src"),
            ("src/{a,b}.py", "src"),
            ("a/../../b", "b"),
            (r"odd\[1\]/f", "odd[1]/f"),
            (r"odd\*/?", "odd*"),
        ] {
            assert_eq!(fixed_part(pattern), Path::new(fixed), "{pattern}");
        }
    }
}
