//! What tells without reading a file whether it has changed.

use std::time::{SystemTime, UNIX_EPOCH};

use isopod_store::{FileFacts, FileRecord, Side};

/// The inputs among records.
pub(in crate::sessions) fn input_paths(records: Vec<FileRecord>) -> Vec<String> {
    records.into_iter().filter(|record| record.side == Side::Input).map(|record| record.path).collect()
}

/// The clock of file systems may stand still for so long; a second change in that time has the same facts.
const CLOCK_STEP: i64 = 100_000_000;

/// Whether a file changed so shortly before now that the same facts could hide a later change.
pub(super) fn is_fresh(facts: &FileFacts) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    now.saturating_sub(facts.changed.max(facts.modified)) < CLOCK_STEP
}
