//! The host's limits on inotify, which the kernel counts per user.
//!
//! All sandboxes whose interpreters come from one zygote count against the zygote's user. Each has a limit of its own,
//! so the user's limit must be higher than all of them together. Otherwise one sandbox could use up the share of
//! another.

use std::path::Path;

const DIRECTORY: &str = "/proc/sys/fs/inotify";
/// Enough for the limits of a thousand sandboxes (`launch`). The memory is charged to the sandboxes
/// themselves.
const WANTED: &[(&str, u64)] = &[("max_user_instances", 131_072), ("max_user_watches", 536_870_912)];

/// Raises limits that are too low. They are never lowered again, because other processes may rely on them by then.
pub fn raise_inotify_limits() {
    for (name, wanted) in WANTED {
        match raise(&Path::new(DIRECTORY).join(name), *wanted) {
            Ok(None) => {}
            Ok(Some(before)) => tracing::info!("raised fs.inotify.{name} from {before} to {wanted}"),
            Err(error) => tracing::warn!(
                %error,
                "could not raise fs.inotify.{name} to {wanted}; sandboxes with interpreters share the present limit"
            ),
        }
    }
}

/// Returns the previous value if it was raised.
fn raise(setting: &Path, wanted: u64) -> std::io::Result<Option<u64>> {
    let text = std::fs::read_to_string(setting)?;
    let present: u64 = text.trim().parse().map_err(std::io::Error::other)?;
    if present >= wanted {
        return Ok(None);
    }
    std::fs::write(setting, wanted.to_string())?;
    Ok(Some(present))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_and_never_lowered() {
        let directory = tempfile::tempdir().expect("no temporary directory");
        let setting = directory.path().join("max");
        std::fs::write(&setting, "128\n").expect("cannot access the setting");
        assert_eq!(raise(&setting, 1000).expect("cannot raise the setting"), Some(128));
        assert_eq!(raise(&setting, 500).expect("cannot read the setting"), None);
        assert_eq!(std::fs::read_to_string(&setting).expect("cannot access the setting"), "1000");
    }
}
