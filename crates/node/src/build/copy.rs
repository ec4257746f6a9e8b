//! Copies files into a tree, as COPY does.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use isopod_image::unpack::Quota;
use rustix::fs::Stat;

use super::source::{Source, Visit};
use super::step_error::StepError;
use super::view::{FileOwner, FileStat, View, Writer};

/// The start of the key of every step that copies. Change it whenever a copy would leave different files, so that no
/// build reuses a layer made the old way.
pub(super) const COPY: &str = "COPY 2";

/// How to copy.
#[derive(Clone, Debug)]
pub(super) struct CopyTo {
    /// An absolute path in the sandbox.
    pub(super) destination: PathBuf,
    /// Whether the destination is a directory even if it does not exist.
    pub(super) is_directory: bool,
    /// The new owner of the files. `None` keeps the ids that they have.
    pub(super) owner: Option<FileOwner>,
    pub(super) mode: Option<u32>,
    /// Whether the parent directories of a source are copied too.
    pub(super) with_parents: bool,
}

/// A file whose contents are part of the request.
#[derive(Clone, Debug)]
pub(super) struct Inline {
    pub(super) name: String,
    pub(super) body: String,
}

/// Copies the paths. Blocks.
pub(super) fn copy(
    source: &Source,
    paths: &[PathBuf],
    view: &View,
    to: &CopyTo,
    quota: &Quota,
) -> Result<(), StepError> {
    let failed = |path: &Path, error: io::Error| StepError::step(format!("could not copy {}: {error}", path.display()));
    // Several files under one name would replace each other. One pattern may have matched all of them.
    let to = &CopyTo { is_directory: to.is_directory || paths.len() > 1, ..to.clone() };
    let mut writer = view.writer().map_err(|error| StepError::internal("write into the template", error))?;
    for path in paths {
        let is_directory = source.is_directory(path);
        let target = target_of(view, to, path, is_directory);
        let mut placer = Placer { writer: &mut writer, to, target, quota };
        source.visit(path, &mut placer, quota).map_err(|error| failed(path, error))?;
    }
    Ok(())
}

/// Writes files that are part of the request. Blocks.
pub(super) fn write_inline(files: &[Inline], view: &View, to: &CopyTo) -> Result<(), StepError> {
    let mut writer = view.writer().map_err(|error| StepError::internal("write into the template", error))?;
    for file in files {
        let target = target_of(view, to, Path::new(&file.name), false);
        let stat = FileStat { mode: to.mode.unwrap_or(0o644), modified: None };
        let written = writer.file(&target, &mut file.body.as_bytes(), to.owner.unwrap_or(FileOwner::ROOT), stat);
        written.map_err(|error| StepError::step(format!("could not write {}: {error}", target.display())))?;
    }
    Ok(())
}

/// The target of a source: inside the destination if that is a directory, otherwise the destination itself.
fn target_of(view: &View, to: &CopyTo, path: &Path, is_directory: bool) -> PathBuf {
    if to.with_parents {
        return to.destination.join(path);
    }
    match path.file_name() {
        Some(name) if !is_directory && (to.is_directory || view.is_directory(&to.destination)) => {
            to.destination.join(name)
        }
        _ => to.destination.clone(),
    }
}

struct Placer<'a, 'v> {
    writer: &'a mut Writer<'v>,
    to: &'a CopyTo,
    target: PathBuf,
    quota: &'a Quota,
}

impl Placer<'_, '_> {
    fn place(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() { self.target.clone() } else { self.target.join(path) }
    }

    fn owner(&self, stat: &Stat) -> FileOwner {
        self.to.owner.unwrap_or(FileOwner { uid: stat.st_uid, gid: stat.st_gid })
    }

    fn mode(&self, stat: &Stat) -> u32 {
        self.to.mode.unwrap_or(stat.st_mode & 0o7777)
    }
}

impl Visit for Placer<'_, '_> {
    fn directory(&mut self, path: &Path, stat: &Stat) -> io::Result<()> {
        let place = self.place(path);
        let (owner, mode) = (self.owner(stat), self.mode(stat));
        // An existing destination keeps its mode, and so do directories that are merged.
        let mode = if path.as_os_str().is_empty() && self.to.mode.is_none() { 0o755 } else { mode };
        self.writer.ensure_directory(&place, owner, mode).map(drop)
    }

    fn file(&mut self, path: &Path, stat: &Stat, content: &mut File) -> io::Result<()> {
        let stat_of = FileStat { mode: self.mode(stat), modified: Some(stat.st_mtime) };
        let (place, owner) = (self.place(path), self.owner(stat));
        self.writer.copy_of(&place, content, owner, stat_of, self.quota).map(drop)
    }

    fn link(&mut self, path: &Path, stat: &Stat, target: &std::ffi::OsStr) -> io::Result<()> {
        let (place, owner) = (self.place(path), self.owner(stat));
        self.writer.symlink(&place, target, owner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use isopod_image::unpack::Bounds;

    use super::super::source::TopLinks;
    use super::*;

    fn to(destination: &str) -> CopyTo {
        CopyTo {
            destination: destination.into(),
            is_directory: destination.ends_with('/'),
            owner: Some(FileOwner { uid: 7, gid: 8 }),
            mode: None,
            with_parents: false,
        }
    }

    fn copy(source: &Source, paths: &[PathBuf], view: &View, to: &CopyTo) -> Result<(), StepError> {
        super::copy(source, paths, view, to, &Quota::new(Bounds::default()))
    }

    fn trees() -> (tempfile::TempDir, Source, View) {
        let scratch = tempfile::tempdir().unwrap();
        let (from, into) = (scratch.path().join("from"), scratch.path().join("into"));
        std::fs::create_dir_all(from.join("d/e")).unwrap();
        std::fs::create_dir_all(into.join("usr/bin")).unwrap();
        std::fs::write(from.join("d/e/f"), "f").unwrap();
        std::fs::write(from.join("a"), "a").unwrap();
        std::fs::set_permissions(from.join("a"), std::fs::Permissions::from_mode(0o750)).unwrap();
        symlink("usr/bin", into.join("bin")).unwrap();
        let source = Source::of(View::of_directory(&from).unwrap());
        let view = View::of_directory(&into).unwrap();
        (scratch, source, view)
    }

    #[test]
    fn a_file_goes_into_a_directory_or_gets_a_new_name() {
        let (scratch, source, view) = trees();
        let into = scratch.path().join("into");
        for (destination, place) in [("/x", "x"), ("/y/", "y/a"), ("/usr/bin", "usr/bin/a"), ("/bin/b", "usr/bin/b")] {
            copy(&source, &["a".into()], &view, &to(destination)).unwrap();
            let copied = std::fs::metadata(into.join(place)).unwrap();
            assert_eq!((copied.uid(), copied.gid(), copied.mode() & 0o777), (7, 8, 0o750), "{destination}");
        }
    }

    #[test]
    fn several_files_go_into_a_directory_however_its_name_is_written() {
        let (scratch, source, view) = trees();
        let from = scratch.path().join("from");
        std::fs::write(from.join("b"), "b").unwrap();
        symlink("/nowhere/at/all", from.join("dangling")).unwrap();
        symlink("d/e/f", from.join("link")).unwrap();
        let paths = source.matches("*", &Quota::new(Bounds::default())).unwrap();
        copy(&source, &paths, &view, &to("/out")).unwrap();
        let out = |name: &str| scratch.path().join("into/out").join(name);
        for (name, text) in [("a", "a"), ("b", "b"), ("e/f", "f"), ("link", "f")] {
            assert_eq!(std::fs::read_to_string(out(name)).unwrap(), text, "{name}");
        }
        assert_eq!(std::fs::read_link(out("dangling")).unwrap(), Path::new("/nowhere/at/all"));
        assert!(!std::fs::symlink_metadata(out("link")).unwrap().is_symlink());

        let source = Source { top_links: TopLinks::Kept, ..source };
        copy(&source, &["link".into()], &view, &to("/kept")).unwrap();
        assert_eq!(std::fs::read_link(scratch.path().join("into/kept")).unwrap(), Path::new("d/e/f"));
    }

    #[test]
    fn the_contents_of_a_directory_are_merged() {
        let (scratch, source, view) = trees();
        copy(&source, &["d".into()], &view, &to("/usr")).unwrap();
        assert_eq!(std::fs::read_to_string(scratch.path().join("into/usr/e/f")).unwrap(), "f");
        assert!(scratch.path().join("into/usr/bin").is_dir());
    }

    #[test]
    fn what_is_copied_is_counted_and_holes_stay_holes() {
        let (scratch, source, view) = trees();
        let from = scratch.path().join("from");
        File::create(from.join("d/sparse")).unwrap().set_len(1 << 40).unwrap();
        copy(&source, &["d".into()], &view, &to("/d")).unwrap();
        let copied = std::fs::metadata(scratch.path().join("into/d/sparse")).unwrap();
        assert_eq!(copied.len(), 1 << 40);
        assert!(copied.blocks() * 512 < 1 << 20, "{}", copied.blocks());
        for bounds in [Bounds { bytes: 0, entries: 10 }, Bounds { bytes: 10, entries: 2 }] {
            let refused = super::copy(&source, &["d".into()], &view, &to("/e"), &Quota::new(bounds));
            assert!(refused.unwrap_err().message.contains("more than"), "{bounds:?}");
        }
    }

    #[test]
    fn nothing_is_written_outside_however_the_links_are() {
        let (scratch, source, view) = trees();
        std::fs::write(scratch.path().join("victim"), "safe").unwrap();
        symlink(scratch.path().join("victim"), scratch.path().join("into/file")).unwrap();
        symlink("../..", scratch.path().join("into/up")).unwrap();
        copy(&source, &["a".into()], &view, &to("/file")).unwrap();
        copy(&source, &["a".into()], &view, &to("/up/victim")).unwrap();
        assert_eq!(std::fs::read_to_string(scratch.path().join("victim")).unwrap(), "safe");
        assert_eq!(std::fs::read_to_string(scratch.path().join("into/victim")).unwrap(), "a");
    }
}
