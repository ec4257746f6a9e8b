//! The lines of a reply to `/execute`: one JSON object each, in E2B's format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::json;

pub(super) const END: &[u8] = b"{\"type\":\"end_of_execution\"}\n";
pub(super) const KEEPALIVE: &[u8] = b"{\"type\":\"keepalive\"}\n";

/// The names of errors that the code did not raise.
pub(super) const DIED: &str = "UnexpectedEndOfExecution";
pub(super) const RESTARTED: &str = "ContextRestarting";
pub(super) const NOT_STARTED: &str = "KernelNotStarted";

/// Longer lines are not parsed: they can only be results or errors.
pub(super) const MAX_PARSED_LINE: usize = 96;
const SECONDS_PER_DAY: u64 = 86_400;

/// Which standard stream printed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
}

/// The kinds of lines that the guest tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first line of a cell.
    Count,
    /// The last line of a cell.
    End,
    Other,
    /// Not an event; clients must not see it.
    Malformed,
}

pub(super) fn kind(line: &[u8]) -> Kind {
    #[derive(Deserialize)]
    struct Typed<'a> {
        r#type: &'a str,
    }
    if line.len() > MAX_PARSED_LINE {
        return if line.starts_with(b"{") { Kind::Other } else { Kind::Malformed };
    }
    // In fields that are skipped, the parser doesn't look whether bytes are text.
    let Ok(text) = str::from_utf8(line) else { return Kind::Malformed };
    match serde_json::from_str::<Typed<'_>>(text).map(|typed| typed.r#type) {
        Ok("number_of_executions") => Kind::Count,
        Ok("end_of_execution") => Kind::End,
        Ok(_) => Kind::Other,
        Err(_) => Kind::Malformed,
    }
}

/// An error that the code did not raise, followed by the end of the cell.
pub(super) fn failure(name: &str, value: &str) -> Bytes {
    let mut lines = json!({"type": "error", "name": name, "value": value, "traceback": ""}).to_string().into_bytes();
    lines.push(b'\n');
    lines.extend_from_slice(END);
    lines.into()
}

/// Appends what a cell printed.
pub(super) fn put_output(source: Source, text: &str, now: SystemTime, out: &mut BytesMut) {
    out.put_slice(match source {
        Source::Stdout => b"{\"type\":\"stdout\",\"text\":",
        Source::Stderr => b"{\"type\":\"stderr\",\"text\":",
    });
    serde_json::to_writer(out.writer(), text).expect("a string always serializes, and writing to memory cannot fail");
    out.put_slice(b",\"timestamp\":\"");
    out.put_slice(timestamp(now).as_bytes());
    out.put_slice(b"\"}\n");
}

/// The time as RFC 3339, in UTC with microseconds.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (day, second) = (since.as_secs() / SECONDS_PER_DAY, since.as_secs() % SECONDS_PER_DAY);
    let (year, month, day) = date(day);
    let (hour, minute, second, micros) = (second / 3600, second / 60 % 60, second % 60, since.subsec_micros());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Converts days since 1970-01-01 to a date. Years are counted from March, so that a leap day is the last day of its year.
fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let day = day + DAYS_TO_1970;
    let (era, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn lines_are_recognised_by_their_type_whatever_the_spacing() {
        assert_eq!(kind(br#"{"type": "end_of_execution"}"#), Kind::End);
        assert_eq!(kind(br#"{"type":"end_of_execution"}"#), Kind::End);
        assert_eq!(kind(br#"{"type":"number_of_executions","execution_count":123456}"#), Kind::Count);
        assert_eq!(kind(br#"{"type":"result","text":"end_of_execution"}"#), Kind::Other);
        assert_eq!(kind(format!(r#"{{"type":"result","text":"{}"}}"#, "x".repeat(200)).as_bytes()), Kind::Other);
        for nonsense in ["", "x", "{}", "[1]", "{\"type\":1}", &"y".repeat(200)] {
            assert_eq!(kind(nonsense.as_bytes()), Kind::Malformed, "{nonsense}");
        }
        assert_eq!(kind(b"{\"no text \xfe\":1,\"type\":\"end_of_execution\"}"), Kind::Malformed);
    }

    #[test]
    fn output_is_one_line_with_a_date() {
        let mut out = BytesMut::new();
        let now = UNIX_EPOCH + Duration::from_micros(1_709_210_096_000_007);
        put_output(Source::Stderr, "a\n\"\\\u{1}é\u{2028}", now, &mut out);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
        let event: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            event,
            json!({"type": "stderr", "text": "a\n\"\\\u{1}é\u{2028}", "timestamp": "2024-02-29T12:34:56.000007Z"})
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: u64| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000000Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000000Z");
    }

    #[test]
    fn a_failure_ends_its_cell() {
        let lines = failure(DIED, "x\ny");
        let lines: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1], END);
        let error: Value = serde_json::from_slice(lines[0]).unwrap();
        assert_eq!(error, json!({"type": "error", "name": DIED, "value": "x\ny", "traceback": ""}));
    }
}
