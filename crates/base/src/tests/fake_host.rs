//! A host of a few files in a temporary directory.

use super::no_sandboxes;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

use super::super::{Base, BaseError, BaseOptions, HostRoot, ensure_base};

pub(super) const GUEST: &[u8] = b"\x7fELF stand-in for the guest";

pub(super) struct FakeHost {
    scratch: tempfile::TempDir,
}

impl FakeHost {
    /// A small Debian.
    pub(super) fn new() -> Self {
        let host = Self { scratch: tempfile::tempdir().unwrap() };
        for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
            host.dir(target);
            host.link(link, target);
        }
        host.file("etc/passwd", "root:x:0:0::/root:/bin/bash\nalice:x:1000:1000:Alice:/home/alice:/bin/bash\n");
        host.file("etc/group", "root:x:0:\nshadow:x:42:\n");
        host.file("etc/skel/.bashrc", "# skeleton\n");
        host.file("etc/profile", "# profile\n");
        host.file("usr/lib/os-release", "PRETTY_NAME=\"Small Linux 1\"\n");
        host.file("var/lib/dpkg/status", "Package: git\nStatus: install ok installed\nVersion: 1:2.1-3\n\n");
        host.file("usr/bin/python3.11", "#!");
        host.link("usr/bin/python3", "python3.11");
        host.file("usr/bin/bash", "#!");
        host.file("usr/bin/git", "#!");
        host.file("usr/lib/python3.11/EXTERNALLY-MANAGED", "no pip\n");
        host.file("usr/local/bin/tool-of-the-host", "#!");
        host
    }

    pub(super) fn root(&self) -> PathBuf {
        self.scratch.path().join("host")
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.scratch.path().join("layers")
    }

    pub(super) fn options(&self) -> BaseOptions {
        BaseOptions { host: HostRoot(self.root()), frozen: false }
    }

    pub(super) fn base(&self) -> Base {
        self.try_base().unwrap()
    }

    pub(super) fn try_base(&self) -> Result<Base, BaseError> {
        ensure_base(&self.layers(), GUEST, &self.options(), no_sandboxes)
    }

    pub(super) fn dir(&self, path: &str) {
        std::fs::create_dir_all(self.root().join(path)).unwrap();
    }

    pub(super) fn file(&self, path: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }

    pub(super) fn file_with_mode(&self, path: &str, contents: &str, mode: u32) {
        let path = self.file(path, contents);
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    pub(super) fn dir_with_mode(&self, path: &str, mode: u32) {
        self.dir(path);
        std::fs::set_permissions(self.root().join(path), Permissions::from_mode(mode)).unwrap();
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub(super) fn node(&self, path: &str, kind: FileType) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // 1:3 is /dev/null.
        let device = if kind == FileType::CharacterDevice { rustix::fs::makedev(1, 3) } else { 0 };
        rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), device).unwrap();
    }
}

/// Every path below `directory`, relative to it, without following links.
pub(super) fn walk(directory: &Path) -> Vec<PathBuf> {
    fn visit(directory: &Path, top: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(top).unwrap().to_owned());
            if path.symlink_metadata().unwrap().is_dir() {
                visit(&path, top, found);
            }
        }
    }
    let mut found = Vec::new();
    visit(directory, directory, &mut found);
    found.sort();
    found
}

/// The first file below `directory` that contains the bytes of `needle`.
pub(super) fn occurs_in(directory: &Path, needle: &[u8]) -> Option<PathBuf> {
    walk(directory).into_iter().map(|path| directory.join(path)).find(|path| {
        path.symlink_metadata().unwrap().is_file()
            && std::fs::read(path).unwrap().windows(needle.len()).any(|window| window == needle)
    })
}
