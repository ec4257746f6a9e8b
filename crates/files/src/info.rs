//! The size and the location of an execution's files (`get_storage_info`).

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::FileError;
use crate::execution::SUB_DIRS;
use crate::list::files_in;
use crate::path::InnerPath;
use crate::store::Files;
use crate::walk::Found;

/// The fields of ROMA's `get_storage_info`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct StorageInfo {
    execution_id: String,
    root_path: String,
    artifacts_path: String,
    temp_path: String,
    results_path: String,
    plots_path: String,
    reports_path: String,
    outputs_path: String,
    logs_path: String,
    total_size_bytes: u64,
    total_size_mb: f64,
    file_count: usize,
    max_file_size: u64,
    quota_bytes: u64,
}

impl Files {
    pub fn info(&self) -> Result<StorageInfo, FileError> {
        let found = files_in(&self.tree()?, &InnerPath::root())?;
        let bytes: u64 = found.iter().map(Found::size).sum();
        let root = self.root_path();
        let [artifacts_path, temp_path, results_path, plots_path, reports_path, outputs_path, logs_path] =
            SUB_DIRS.map(|dir| format!("{root}/{dir}"));
        Ok(StorageInfo {
            execution_id: self.execution.as_str().to_owned(),
            artifacts_path,
            temp_path,
            results_path,
            plots_path,
            reports_path,
            outputs_path,
            logs_path,
            total_size_bytes: bytes,
            total_size_mb: megabytes(bytes),
            file_count: found.len(),
            max_file_size: self.store.limits.max_file_size,
            quota_bytes: self.store.limits.execution_quota,
            root_path: root,
        })
    }
}

/// Rounds to two decimals, as ROMA does.
fn megabytes(bytes: u64) -> f64 {
    let hundredths = u128::from(bytes) * 100 / (1 << 20);
    let rounded = u32::try_from(hundredths).unwrap_or(u32::MAX);
    f64::from(rounded) / 100.0
}
