//! What an execution's files take and where they are (`get_storage_info`).

use serde_json::{Value, json};

use super::error::FileError;
use super::execution::SUB_DIRS;
use super::list::files_in;
use super::path::InnerPath;
use super::store::Files;
use super::walk::Found;

impl Files {
    /// The fields that ROMA's `get_storage_info` has.
    pub fn info(&self) -> Result<Value, FileError> {
        let found = files_in(&self.tree()?, &InnerPath::root())?;
        let bytes: u64 = found.iter().map(Found::size).sum();
        let root = self.root_path();
        let mut info = json!({
            "execution_id": self.execution.as_str(),
            "root_path": root,
            "total_size_bytes": bytes,
            "total_size_mb": megabytes(bytes),
            "file_count": found.len(),
            "max_file_size": self.store.limits.max_file_size,
            "quota_bytes": self.store.limits.execution_quota,
        });
        for (name, dir) in SUB_DIRS {
            info[name] = json!(format!("{root}/{dir}"));
        }
        Ok(info)
    }
}

/// With two digits behind the point, as the original rounds.
fn megabytes(bytes: u64) -> f64 {
    let hundredths = u128::from(bytes) * 100 / (1 << 20);
    let rounded = u32::try_from(hundredths).unwrap_or(u32::MAX);
    f64::from(rounded) / 100.0
}
