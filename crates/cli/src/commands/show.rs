//! Words and figures for people: tables, times, sizes.

use isopod_client::sandbox::SandboxState;
use time::{Duration, OffsetDateTime};

pub(super) use crate::printable::printable;

/// Prints rows under headings, each column as wide as it must be. A cell stays in its row, whoever chose its text.
pub(super) fn print_table(headings: &[&str], rows: &[Vec<String>]) {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    say!("{}", line(headings.iter().copied(), &widths));
    for row in &rows {
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
    fn spans_are_short() {
        let of = |seconds| span(Duration::seconds(seconds));
        assert_eq!([of(-5), of(59), of(61), of(3661), of(90_000)], ["0s", "59s", "1m 1s", "1h 1m", "1d 1h"]);
    }

    #[test]
    fn columns_stand_below_each_other() {
        assert_eq!(line(["a", "b"].into_iter(), &[3, 5]), "a    b");
    }
}
