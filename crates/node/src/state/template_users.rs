//! Which state directories use a templates directory. One that several share holds a link to each of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// In a templates directory that is shared: a link to each state directory that uses it.
const USERS: &str = ".users";

/// The state directories that share a templates directory, as links in it. Those that are gone are forgotten.
pub(crate) fn template_users(templates: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(templates.join(USERS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut users = Vec::new();
    for entry in entries {
        let link = entry?.path();
        match link.metadata() {
            Ok(_) => users.push(link),
            // A state directory that somebody removed by hand has no records.
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_file(&link)),
            Err(error) => return Err(error),
        }
    }
    Ok(users)
}

/// Tells a shared templates directory that sandboxes of this state directory stand on its layers.
pub(crate) fn add_template_user(state: &Path, templates: &Path) -> io::Result<()> {
    if !templates.is_symlink() {
        return Ok(());
    }
    let users = templates.join(USERS);
    let link = users.join(user_name(state)?);
    if fs::read_link(&link).is_ok_and(|target| target == state) {
        return Ok(());
    }
    fs::create_dir_all(&users)?;
    match std::os::unix::fs::symlink(state, &link) {
        // It was moved here; or another process of the same state directory is just as far.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = fs::remove_file(&link);
            match std::os::unix::fs::symlink(state, &link) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        }
        other => other,
    }
}

/// The state directory is about to be removed.
pub(crate) fn remove_template_user(state: &Path, templates: &Path) {
    if let Ok(name) = user_name(state) {
        // Where nobody finds the directory behind a link, the link counts for nothing.
        let _ = fs::remove_file(templates.join(USERS).join(name));
    }
}

/// Two directories never share it, and a path may be longer than a name.
fn user_name(state: &Path) -> io::Result<String> {
    let metadata = state.metadata()?;
    Ok(format!("{:x}-{:x}", metadata.dev(), metadata.ino()))
}
