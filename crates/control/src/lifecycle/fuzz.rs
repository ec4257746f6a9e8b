//! Fuzz targets for the process output that a guest reports.

use super::output::lines_of;
use crate::upstream::OutputPage;
use isopod_store::clock::Timestamp;

/// Parses a page. The resulting lines are in order, not from the future, and valid for a store.
pub fn guest_pages(data: &[u8]) {
    let Ok(page) = OutputPage::parse(data) else { return };
    let lines = lines_of(page);
    assert!(lines.is_sorted_by_key(|line| line.timestamp.0));
    // Lines with equal timestamps are spread over the next milliseconds, so a long page may reach a little further.
    let rows = i64::try_from(lines.len()).expect("a page is small");
    let latest = Timestamp::now().0.saturating_add(1000).saturating_add(rows);
    for line in &lines {
        assert!((0..=latest).contains(&line.timestamp.0), "{:?}", line.timestamp);
        assert!(!line.message.contains('\0'), "{:?}", line.message);
    }
}
