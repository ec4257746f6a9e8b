//! The size of the files, and the removal of unneeded ones.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::{FileStorage, StorageError};
use crate::sandbox::Call;

/// The size and location of an execution's files.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct StorageInfo {
    /// The execution.
    pub execution_id: String,
    /// The directory with all its files.
    pub root_path: String,
    /// The total size in bytes.
    pub total_size_bytes: u64,
    /// The total size in megabytes, rounded to two decimals.
    pub total_size_mb: f64,
    /// The number of files.
    pub file_count: u64,
    /// The directory of artifacts.
    pub artifacts_path: String,
    /// The directory of temporary files.
    pub temp_path: String,
    /// The directory of results.
    pub results_path: String,
    /// The directory of plots.
    pub plots_path: String,
    /// The directory of reports.
    pub reports_path: String,
    /// The directory of outputs.
    pub outputs_path: String,
    /// The directory of logs.
    pub logs_path: String,
}

impl FileStorage {
    /// Returns the size and location of the files.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn get_storage_info(&self) -> Result<StorageInfo, StorageError> {
        Ok(self.client.call(Call::new(Method::GET, self.url("/info"))).await?.parse()?)
    }

    /// Removes temporary files that were not written for this long. Returns how many.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn cleanup_temp_files(&self, older_than: Duration) -> Result<u64, StorageError> {
        #[derive(Deserialize)]
        struct Cleaned {
            removed: u64,
        }
        let body = json!({ "older_than_hours": older_than.as_secs_f64() / 3600.0 });
        let call = Call::new(Method::POST, self.url("/cleanup")).json(&body);
        let Cleaned { removed } = self.client.call(call).await?.parse()?;
        Ok(removed)
    }

    /// Removes all temporary files. Returns how many.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn cleanup_execution_temp_files(&self) -> Result<u64, StorageError> {
        self.cleanup_temp_files(Duration::ZERO).await
    }

    /// Removes all files of the execution. After that, any team can use its id.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn remove_everything(self) -> Result<(), StorageError> {
        self.client.call(Call::new(Method::DELETE, self.url(""))).await?;
        Ok(())
    }
}
