//! The state directories that use a templates directory. A shared one contains a link to each of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// In a shared templates directory: the directory of those links.
const USERS: &str = ".users";

/// The state directories that share a templates directory. Links to removed ones are deleted.
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
            // A state directory that was removed by hand has no records.
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_file(&link)),
            Err(error) => return Err(error),
        }
    }
    Ok(users)
}

/// Records in a shared templates directory that this state directory uses it.
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
        // The state directory was moved, or another process of it does the same right now.
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

/// Removes the record of a state directory that is about to be removed.
pub(crate) fn remove_template_user(state: &Path, templates: &Path) {
    if let Ok(name) = user_name(state) {
        // If this fails, the link will dangle and be ignored.
        let _ = fs::remove_file(templates.join(USERS).join(name));
    }
}

/// A unique name. The path itself may be too long for a file name.
fn user_name(state: &Path) -> io::Result<String> {
    let metadata = state.metadata()?;
    Ok(format!("{:x}-{:x}", metadata.dev(), metadata.ino()))
}
