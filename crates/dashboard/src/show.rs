//! How pages show values: sizes, times, states.

use maud::{Markup, html};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// `1.5 GiB`
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "only three digits are shown")]
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A time, as how long ago it was or how far away it is. A script keeps it up to date.
pub(crate) fn time(rfc3339: &str) -> Markup {
    let Ok(at) = OffsetDateTime::parse(rfc3339, &Rfc3339) else { return html! { (rfc3339) } };
    let seconds = (at - OffsetDateTime::now_utc()).whole_seconds();
    html! { time datetime=(rfc3339) title=(rfc3339) { (relative(seconds)) } }
}

/// `in 5 min`, `3 h ago`
fn relative(seconds: i64) -> String {
    let amount = match seconds.unsigned_abs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    };
    if seconds > 0 { format!("in {amount}") } else { format!("{amount} ago") }
}

/// A state as a dot and its name.
pub(crate) fn state(name: &str) -> Markup {
    let kind = match name {
        "running" | "ready" | "completed" | "succeeded" | "ok" => "good",
        "paused" | "waiting" | "pending" | "suspended" => "waiting",
        "building" | "uploading" | "creating" => "busy",
        "error" | "failed" | "unhealthy" | "rejected" => "bad",
        _ => "quiet",
    };
    html! { span .state data-kind=(kind) { (name) } }
}

/// What a list shows if it is empty.
pub(crate) fn empty(sentence: &str) -> Markup {
    html! { p .empty { (sentence) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(200 << 20)], ["0 B", "1023 B", "1.5 KiB", "200 MiB"]);
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn times_are_told_from_now() {
        assert_eq!([relative(300), relative(-5), relative(-7200)], ["in 5 min", "5 s ago", "2 h ago"]);
        assert_eq!(relative(i64::MIN), "106751991167300 d ago");
        assert_eq!(time("<b>").into_string(), "&lt;b&gt;");
    }
}
