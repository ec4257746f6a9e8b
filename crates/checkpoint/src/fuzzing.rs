//! The entry point for the fuzz target in `/fuzz`. It takes any bytes and panics if the parser breaks a promise.

/// Reads the bytes as an image of open files, changes it as before a restore, and writes it.
pub fn checkpoint_image(data: &[u8]) {
    super::images::check_changes(data);
}
