//! The description of one file, directory or link.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use isopod_wire::rpc::filesystem::{EntryInfo, FileType};
use isopod_wire::rpc::{MessageField, Timestamp};

use crate::fs::metadata::read_metadata;
use crate::paths::base_name;
use crate::users::Names;

/// Describes `path` itself. A link gets the type and mode of its target.
pub(crate) fn entry_info(path: &Path, names: &Names) -> io::Result<EntryInfo> {
    let own = std::fs::symlink_metadata(path)?;
    let target = own.is_symlink().then(|| std::fs::metadata(path).ok());
    let shown = match &target {
        None => Some(&own),
        Some(target) => target.as_ref(),
    };
    let symlink_target = own.is_symlink().then(|| resolved_target(path));
    Ok(EntryInfo {
        name: base_name(path),
        r#type: shown.map_or(FileType::FILE_TYPE_UNSPECIFIED, file_type).into(),
        path: path.to_string_lossy().into_owned(),
        size: size(&own),
        mode: shown.map_or(0, |meta| meta.mode() & 0o777),
        permissions: permissions(own.mode()),
        owner: names.user(own.uid()),
        group: names.group(own.gid()),
        modified_time: MessageField::some(modified(&own)),
        symlink_target,
        metadata: match shown {
            Some(meta) if meta.is_file() || meta.is_dir() => read_metadata(path).into_iter().collect(),
            _ => Default::default(),
        },
        is_symlink: own.is_symlink(),
    })
}

/// The final target of a link, or the link itself if it is dangling.
fn resolved_target(path: &Path) -> String {
    std::fs::canonicalize(path).as_deref().unwrap_or(path).to_string_lossy().into_owned()
}

fn file_type(meta: &Metadata) -> FileType {
    if meta.is_file() {
        FileType::FILE_TYPE_FILE
    } else if meta.is_dir() {
        FileType::FILE_TYPE_DIRECTORY
    } else {
        FileType::FILE_TYPE_UNSPECIFIED
    }
}

/// The size in bytes. Of a directory, whole blocks as on ext4, the file system of E2B's sandboxes: btrfs counts the letters
/// of the names in it, so that an empty one has none.
fn size(meta: &Metadata) -> i64 {
    const BLOCK: u64 = 4096;
    let bytes = if meta.is_dir() { meta.size().max(1).next_multiple_of(BLOCK) } else { meta.size() };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn modified(meta: &Metadata) -> Timestamp {
    Timestamp { seconds: meta.mtime(), nanos: i32::try_from(meta.mtime_nsec()).unwrap_or(0), ..Default::default() }
}

/// Permissions such as `-rw-r--r--`, in the format of E2B's daemon: one letter each for the kind and the special bits comes
/// first.
fn permissions(mode: u32) -> String {
    let mut text = String::with_capacity(12);
    text.push_str(match mode & libc::S_IFMT {
        libc::S_IFDIR => "d",
        libc::S_IFLNK => "L",
        libc::S_IFIFO => "p",
        libc::S_IFSOCK => "S",
        libc::S_IFCHR => "Dc",
        libc::S_IFBLK => "D",
        _ => "",
    });
    for (bit, letter) in [(libc::S_ISUID, 'u'), (libc::S_ISGID, 'g'), (libc::S_ISVTX, 't')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (shift, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode & (1 << shift) != 0 { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_have_the_format_of_e2b() {
        assert_eq!(permissions(libc::S_IFREG | 0o644), "-rw-r--r--");
        assert_eq!(permissions(libc::S_IFDIR | 0o1777), "dtrwxrwxrwx");
        assert_eq!(permissions(libc::S_IFREG | 0o4755), "urwxr-xr-x");
        assert_eq!(permissions(libc::S_IFLNK | 0o777), "Lrwxrwxrwx");
        assert_eq!(permissions(libc::S_IFCHR | 0o666), "Dcrw-rw-rw-");
    }

    #[test]
    fn a_link_shows_the_type_of_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let info = entry_info(&link, &Names::read()).unwrap();
        assert!(info.is_symlink);
        assert_eq!(info.r#type, FileType::FILE_TYPE_DIRECTORY);
        assert_eq!(info.symlink_target.as_deref(), dir.path().canonicalize().unwrap().to_str());
    }

    #[test]
    fn a_directory_has_whole_blocks_and_a_file_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "12345").unwrap();
        let size = |path: &Path| entry_info(path, &Names::read()).unwrap().size;
        assert_eq!((size(dir.path()), size(&dir.path().join("file"))), (4096, 5));
        // Sizes of directories as tmpfs and btrfs count them.
        assert!(["/proc", "/dev/shm"].iter().all(|path| size(Path::new(path)) == 4096));
    }

    #[test]
    fn a_link_to_nowhere_has_no_type() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/no/such", &link).unwrap();
        assert_eq!(entry_info(&link, &Names::read()).unwrap().r#type, FileType::FILE_TYPE_UNSPECIFIED);
    }
}
