//! Programs that several test programs install into the same cache.

use std::path::Path;

/// Installs a program in the cache if it is not there. Tests run concurrently: one of them installs it and the others
/// wait. The Python suites use the same lock.
pub(crate) fn install_once(directory: &Path, program: &str, install: impl FnOnce()) {
    let (parent, name) = (directory.parent().unwrap(), directory.file_name().unwrap());
    std::fs::create_dir_all(parent).unwrap();
    let lock = std::fs::File::create(parent.join(format!(".{}.lock", name.to_string_lossy()))).unwrap();
    lock.lock().unwrap();
    if !directory.join(program).exists() {
        install();
    }
}
