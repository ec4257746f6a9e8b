//! Words and figures for people: tables, times, sizes. What comes from a sandbox cannot steer the terminal.

use isopod_client::sandbox::SandboxState;
use time::{Duration, OffsetDateTime};

/// Prints rows under headings, each column as wide as it must be.
pub(super) fn print_table(headings: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    say!("{}", line(headings.iter().copied(), &widths));
    for row in rows {
        say!("{}", line(row.iter().map(String::as_str), &widths));
    }
}

/// One more row below a table with these headings.
pub(super) fn aligned(headings: &[&str], row: &[String]) -> String {
    let widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    line(row.iter().map(String::as_str), &widths)
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let cells: Vec<String> = cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    cells.join("  ").trim_end().to_owned()
}

/// Text of unknown origin, with nothing in it that a terminal would act on.
pub(super) fn printable(text: &str) -> String {
    let harmless = |character: char| match character {
        '\t' => ' ',
        control if control.is_control() => '\u{fffd}',
        other => other,
    };
    text.chars().map(harmless).collect()
}

pub(super) fn moment(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// How long from now, such as `4m 12s`.
pub(super) fn from_now(time: OffsetDateTime) -> String {
    span(time - OffsetDateTime::now_utc())
}

fn span(duration: Duration) -> String {
    let seconds = duration.whole_seconds().max(0);
    match seconds {
        86_400.. => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
        3600.. => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        60.. => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{seconds}s"),
    }
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

pub(super) fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\td\u{9b}"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c d\u{fffd}");
    }

    #[test]
    fn spans_are_short() {
        let of = |seconds| span(Duration::seconds(seconds));
        assert_eq!([of(-5), of(59), of(61), of(3661), of(90_000)], ["0s", "59s", "1m 1s", "1h 1m", "1d 1h"]);
    }

    #[test]
    fn columns_stand_below_each_other() {
        assert_eq!(line(["a", "b"].into_iter(), &[3, 5]), "a    b");
    }
}
