//! Finds out which file system is mounted at a path, from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mount as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) kind: String,
    pub(super) source: PathBuf,
    /// The options of the file system itself.
    pub(super) options: String,
}

/// The topmost mount at exactly this path, if there is one. The path must be absolute and without symbolic links.
pub(super) fn mount_at(path: &Path) -> io::Result<Option<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(find(&table, path))
}

fn find(table: &[u8], path: &Path) -> Option<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(|line| parse(line, path)).next_back()
}

/// `36 35 98:0 /root /mount-point options optional-fields - kind source super-options`
fn parse(line: &[u8], path: &Path) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    if unescape(fields.nth(4)?) != path.as_os_str().as_bytes() {
        return None;
    }
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    Some(Mount { kind, source, options })
}

/// The kernel writes space, tab, newline and backslash as a backslash with three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match octal(rest) {
            Some(byte) => {
                plain.push(byte);
                rest = &rest[4..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

fn octal(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.strip_prefix(b"\\")?.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = br"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
80 22 0:40 / /a\040b rw,nosuid shared:5 - tmpfs none rw
81 80 0:41 / /a\040b rw,nosuid shared:6 master:2 - btrfs /dev/loop3 rw
broken line
";

    #[test]
    fn the_topmost_mount_at_the_path_is_found() {
        let mount = find(TABLE, Path::new("/a b")).unwrap();
        assert_eq!((mount.kind.as_str(), mount.source.as_path()), ("btrfs", Path::new("/dev/loop3")));
        assert_eq!(find(TABLE, Path::new("/a")), None);
        assert_eq!(find(TABLE, Path::new("/")).unwrap().kind, "ext4");
    }

    #[test]
    fn a_backslash_at_the_end_is_kept() {
        assert_eq!(unescape(br"x\04"), br"x\04");
    }
}
