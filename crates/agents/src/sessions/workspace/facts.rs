//! Detects changes of a file without reading it.

use std::time::{SystemTime, UNIX_EPOCH};

use isopod_store::{FileFacts, FileRecord, Side};

/// The inputs among records.
pub(in crate::sessions) fn input_paths(records: Vec<FileRecord>) -> Vec<String> {
    records.into_iter().filter(|record| record.side == Side::Input).map(|record| record.path).collect()
}

/// The granularity of file system clocks. A second change within this time has the same metadata.
const CLOCK_STEP: i64 = 100_000_000;

/// Whether a file changed so recently that the same metadata could hide a later change.
pub(super) fn is_fresh(facts: &FileFacts) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    now.saturating_sub(facts.changed.max(facts.modified)) < CLOCK_STEP
}
