//! Programs that several test programs install into the same cache.

use std::path::Path;

/// Installs a program under the cache if it is not there. Tests run beside each other: one installs, the others wait.
/// The Python suites take the same lock.
pub(crate) fn install_once(directory: &Path, program: &str, install: impl FnOnce()) {
    let (parent, name) = (directory.parent().unwrap(), directory.file_name().unwrap());
    std::fs::create_dir_all(parent).unwrap();
    let lock = std::fs::File::create(parent.join(format!(".{}.lock", name.to_string_lossy()))).unwrap();
    lock.lock().unwrap();
    if !directory.join(program).exists() {
        install();
    }
}
