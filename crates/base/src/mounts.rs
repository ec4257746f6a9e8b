//! Lists the file systems mounted below a directory. A clone of the parent mount does not show them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::error::BaseError;

/// The mount points strictly below `directory`, relative to it, sorted and without duplicates.
pub(super) fn mounts_below(directory: &Path) -> Result<Vec<PathBuf>, BaseError> {
    let path = Path::new("/proc/self/mountinfo");
    let table = std::fs::read(path);
    let table = table.map_err(|source| BaseError::Store { action: "read", path: path.to_owned(), source })?;
    Ok(parse_mounts_below(&table, directory))
}

fn parse_mounts_below(table: &[u8], directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| PathBuf::from(OsString::from_vec(unescape(field))))
        .filter_map(|point| point.strip_prefix(directory).ok().map(Path::to_owned))
        .filter(|relative| !relative.as_os_str().is_empty())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The kernel writes spaces, tabs, newlines and backslashes as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escaped = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_are_listed() {
        let table =
            b"1 0 8:1 / / rw - ext4 x rw\n2 1 8:2 / /usr rw - ext4 y rw\n3 1 8:3 / /usr/lib\\040x rw - ext4 z rw\n\
                      4 1 8:3 / /usr/share/doc rw - ext4 z rw\n5 1 8:3 / /usr2/a rw - ext4 z rw\nbroken\n\n";
        let expected = vec![PathBuf::from("lib x"), PathBuf::from("share/doc")];
        assert_eq!(parse_mounts_below(table, Path::new("/usr")), expected);
    }
}
