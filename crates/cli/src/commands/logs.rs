//! `isopod logs`: what a sandbox said, also after its end.

use std::process::ExitCode;
use std::time::Duration;

use isopod_client::sandbox::{LogEntry, LogQuery};
use isopod_client::{ApiError, Client, SandboxId};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::remote::{client, explain};
use super::show::printable;
use crate::args::LogsArgs;
use crate::say::print_json;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// As many as servers give at once.
const PAGE: u32 = 1000;

pub(super) async fn run(args: LogsArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    let mut reading = Reading::default();
    loop {
        // Asked before the last look, so that nothing said in between is missed.
        let over = !args.follow || is_gone(&client, &args.sandbox).await.map_err(explain)?;
        while let Some(entries) = reading.next_page(&client, &args.sandbox).await.map_err(explain)? {
            for entry in entries {
                print(&entry, args.json)?;
            }
        }
        if over {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn is_gone(client: &Client, sandbox: &SandboxId) -> Result<bool, ApiError> {
    match client.info(sandbox).await {
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// How far the log has been read. Entries have no number: the next page begins with the last millisecond once more, and
/// as many as were printed of it are left out.
#[derive(Debug, Default)]
struct Reading {
    from_ms: i64,
    /// How many entries of that millisecond were printed.
    printed: usize,
}

impl Reading {
    /// What was not read yet; none when that is nothing.
    async fn next_page(&mut self, client: &Client, sandbox: &SandboxId) -> Result<Option<Vec<LogEntry>>, ApiError> {
        let query = LogQuery { start_ms: Some(self.from_ms), limit: Some(PAGE) };
        let entries = client.logs(sandbox, query).await?;
        let is_full = entries.len() >= PAGE as usize;
        let fresh = self.take_fresh(entries);
        if fresh.is_empty() && is_full {
            // One millisecond holds more than a page: what does not fit cannot be asked for.
            *self = Self { from_ms: self.from_ms + 1, printed: 0 };
            return Ok(Some(fresh));
        }
        Ok((!fresh.is_empty()).then_some(fresh))
    }

    fn take_fresh(&mut self, entries: Vec<LogEntry>) -> Vec<LogEntry> {
        let mut fresh = Vec::new();
        let mut to_skip = self.printed;
        for entry in entries {
            let at = milliseconds(&entry.timestamp).unwrap_or(self.from_ms);
            if at > self.from_ms {
                *self = Self { from_ms: at, printed: 0 };
                to_skip = 0;
            }
            if to_skip > 0 {
                to_skip -= 1;
                continue;
            }
            self.printed += 1;
            fresh.push(entry);
        }
        fresh
    }
}

fn milliseconds(timestamp: &str) -> Option<i64> {
    let time = OffsetDateTime::parse(timestamp, &Rfc3339).ok()?;
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

fn print(entry: &LogEntry, json: bool) -> anyhow::Result<()> {
    if json {
        print_json(entry);
        return Ok(());
    }
    let fields: String = entry.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    let message = entry.message.trim_end_matches('\n');
    say!("{} {:<5} {}{}", printable(&entry.timestamp), printable(&entry.level), printable(message), printable(&fields));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(timestamp: &str, message: &str) -> LogEntry {
        LogEntry {
            timestamp: timestamp.to_owned(),
            level: "info".to_owned(),
            message: message.to_owned(),
            fields: BTreeMap::new(),
        }
    }

    #[test]
    fn what_was_printed_is_not_printed_again() {
        let mut reading = Reading::default();
        let first = vec![entry("2026-01-01T00:00:00.001Z", "a"), entry("2026-01-01T00:00:00.002Z", "b")];
        assert_eq!(reading.take_fresh(first).len(), 2);
        let again = vec![entry("2026-01-01T00:00:00.002Z", "b"), entry("2026-01-01T00:00:00.002Z", "b")];
        let fresh = reading.take_fresh(again.clone());
        assert_eq!((fresh.len(), fresh[0].message.as_str()), (1, "b"), "the same words may be said twice");
        assert!(reading.take_fresh(again).is_empty());
        assert_eq!(reading.from_ms, 1_767_225_600_002);
    }
}
