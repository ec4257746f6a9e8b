//! Entry points for the fuzz targets in `/fuzz`: the parsers of text that people write. Each function takes any bytes and
//! panics if its parser breaks a promise.

use crate::build::BuildStep;
use crate::delivery::Report;
use crate::{Bytes, Cidr, SandboxId};

/// Parses the text as each type, and checks that a parsed value survives printing and parsing. Its lines are also parsed as
/// a build step, its first bytes as a report of a delivery.
pub fn wire_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(network) = text.parse::<Cidr>() {
        assert_eq!(network.to_string().parse::<Cidr>().ok(), Some(network));
        assert!(network.first() <= network.last());
    }
    if let Ok(id) = text.parse::<SandboxId>() {
        assert_eq!(id.as_str(), text);
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id:?}");
    }
    if let Ok(size) = text.parse::<Bytes>() {
        assert_eq!(size.to_string().parse::<Bytes>().ok(), Some(size));
    }
    if let Some(report) = data.first_chunk().map(Report::decode) {
        assert_eq!(Report::decode(&report.encode()), report);
    }
    let mut lines = text.lines().map(str::to_owned);
    let kind = lines.next().unwrap_or_default();
    let _ = BuildStep::parse(&kind, &lines.collect::<Vec<_>>(), Some("/archive".into()), false);
}
