//! Changes the text of `/etc/passwd`, `/etc/group` and `/etc/shadow` in a file tree.

use std::io;
use std::path::Path;

use super::view::{FileOwner, FileStat, View, Writer};

/// Appends a line, also to a text whose last line has no end.
pub(super) fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
    text.push('\n');
}

/// Adds a user without a password to `/etc/shadow`, if the tree has that file.
pub(super) fn add_shadow(view: &View, writer: &mut Writer<'_>, user: &str) -> io::Result<()> {
    let mut shadow = view.read_small("/etc/shadow");
    if shadow.is_empty() {
        return Ok(());
    }
    add_line(&mut shadow, &format!("{user}:*:20000:0:99999:7:::"));
    write(writer, "/etc/shadow", &shadow, 0o640)
}

/// Adds a user to the group `sudo` of a text that has this group.
pub(super) fn add_to_sudo(group: &str, user: &str) -> String {
    let joined = group.lines().map(|line| match line.strip_prefix("sudo:") {
        Some(rest) if rest.ends_with(':') => format!("{line}{user}\n"),
        Some(_) => format!("{line},{user}\n"),
        None => format!("{line}\n"),
    });
    joined.collect()
}

/// Writes a file of root's.
pub(super) fn write(writer: &mut Writer<'_>, path: &str, text: &str, mode: u32) -> io::Result<()> {
    let stat = FileStat { mode, modified: None };
    writer.file(Path::new(path), &mut text.as_bytes(), FileOwner::ROOT, stat).map(drop)
}
