//! Resolves paths as a sandbox would, from the layers alone, without mounting them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// The layers of a base that form the root file system.
#[derive(Debug)]
pub(super) struct MergedRoot<'a> {
    pub(super) root: &'a Path,
    pub(super) usr: &'a Path,
    /// The host's `/usr` below our own layer. `None` if that layer is a full copy.
    pub(super) host_usr: Option<&'a Path>,
}

/// The kernel's limit on links.
const LINK_LIMIT: usize = 40;

impl MergedRoot<'_> {
    /// Whether `path` exists when links are followed as in a sandbox.
    pub(super) fn exists(&self, path: &str) -> bool {
        path.starts_with('/') && self.resolve(Path::new(path)).is_some()
    }

    /// The path that `path` resolves to, relative to the root.
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let mut rest: VecDeque<OsString> = names(path);
        let mut done = PathBuf::new();
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                done.pop();
                continue;
            }
            let next = done.join(&name);
            let (at, metadata) = self.find(&next)?;
            if !metadata.is_symlink() {
                done = next;
                continue;
            }
            links += 1;
            let target = std::fs::read_link(at).ok().filter(|_| links <= LINK_LIMIT)?;
            if target.is_absolute() {
                done.clear();
            }
            names(&target).into_iter().rev().for_each(|name| rest.push_front(name));
        }
        Some(done)
    }

    /// The location of `relative` in the topmost layer that has it. All components but the last are known not to be
    /// links.
    fn find(&self, relative: &Path) -> Option<(PathBuf, Metadata)> {
        let Ok(below_usr) = relative.strip_prefix("usr") else { return look(self.root.join(relative)) };
        if let Some((at, metadata)) = look(self.usr.join(below_usr)) {
            return (!is_whiteout(&metadata)).then_some((at, metadata));
        }
        let is_local = below_usr.starts_with("local");
        self.host_usr.filter(|_| !is_local).and_then(|host_usr| look(host_usr.join(below_usr)))
    }
}

fn look(path: PathBuf) -> Option<(PathBuf, Metadata)> {
    let metadata = path.symlink_metadata().ok()?;
    Some((path, metadata))
}

fn is_whiteout(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == 0
}

/// The components of a path in order, including `..`.
fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| component.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_inside_and_never_on_the_host() {
        let scratch = tempfile::tempdir().unwrap();
        let [root, usr, host_usr] = ["root", "usr", "host"].map(|name| scratch.path().join(name));
        for dir in [root.join("etc/ssl"), usr.join("local/share"), host_usr.join("share"), host_usr.join("local")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        symlink("/usr/share/ca.pem", root.join("etc/ssl/link")).unwrap();
        symlink("/proc/self/root/etc/passwd", root.join("etc/ssl/out")).unwrap();
        symlink("loop", root.join("etc/ssl/loop")).unwrap();
        symlink("../../../../usr/share", root.join("etc/ssl/up")).unwrap();
        std::fs::write(host_usr.join("share/ca.pem"), "").unwrap();
        std::fs::write(host_usr.join("local/tool"), "").unwrap();
        let merged = MergedRoot { root: &root, usr: &usr, host_usr: Some(&host_usr) };

        assert!(merged.exists("/etc/ssl/link"));
        assert!(merged.exists("/etc/ssl/up/ca.pem"));
        assert!(merged.exists("/usr/local/share"));
        assert!(!merged.exists("/etc/ssl/out"));
        assert!(!merged.exists("/etc/ssl/loop"));
        assert!(!merged.exists("/usr/local/tool"));
        assert!(!merged.exists("/etc/passwd"));
        assert!(!merged.exists("etc/ssl"));
    }
}
