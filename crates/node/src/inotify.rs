//! The host's limits on inotify, which the kernel counts per user.
//!
//! All sandboxes whose interpreters come from one zygote count against the zygote's user. Each has a cap of its own, so the
//! user's limit has to be above all of them together, or one sandbox could take what is another's.

use std::path::Path;

const DIRECTORY: &str = "/proc/sys/fs/inotify";
/// Enough for the caps of a thousand sandboxes (`isolation::launch`). What they take is charged to their own memory.
const WANTED: &[(&str, u64)] = &[("max_user_instances", 131_072), ("max_user_watches", 536_870_912)];

/// Raises what is below. It is never lowered again: whatever was started meanwhile may use it.
pub(crate) fn raise_limits() {
    for (name, wanted) in WANTED {
        match raise(&Path::new(DIRECTORY).join(name), *wanted) {
            Ok(None) => {}
            Ok(Some(before)) => tracing::info!("raised fs.inotify.{name} from {before} to {wanted}"),
            Err(error) => tracing::warn!(
                %error,
                "could not raise fs.inotify.{name} to {wanted}: interpreter sandboxes share what there is"
            ),
        }
    }
}

/// Returns what it was, where it was raised.
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
        let directory = tempfile::tempdir().expect("a directory");
        let setting = directory.path().join("max");
        std::fs::write(&setting, "128\n").expect("a setting");
        assert_eq!(raise(&setting, 1000).expect("it is raised"), Some(128));
        assert_eq!(raise(&setting, 500).expect("it stays"), None);
        assert_eq!(std::fs::read_to_string(&setting).expect("a setting"), "1000");
    }
}
