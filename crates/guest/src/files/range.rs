//! Range and conditional requests, by the rules of HTTP for a resource that has a date but no entity tag.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, header};

/// How to answer a request for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeOutcome {
    Whole,
    /// From the first position up to, but excluding, the second.
    Part(u64, u64),
    NotModified,
    PreconditionFailed,
    Unsatisfiable,
}

/// Decides by the headers, the file's length and its modification time.
pub(crate) fn evaluate(headers: &HeaderMap, length: u64, modified: SystemTime) -> RangeOutcome {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let modified = whole_seconds(modified);
    if text(header::IF_MATCH).is_some_and(|tags| tags.trim() != "*") {
        return RangeOutcome::PreconditionFailed;
    }
    if text(header::IF_UNMODIFIED_SINCE).and_then(parse_date).is_some_and(|since| modified > since) {
        return RangeOutcome::PreconditionFailed;
    }
    match text(header::IF_NONE_MATCH) {
        Some(tags) if tags.trim() == "*" => return RangeOutcome::NotModified,
        Some(_) => {}
        None if text(header::IF_MODIFIED_SINCE).and_then(parse_date).is_some_and(|since| modified <= since) => {
            return RangeOutcome::NotModified;
        }
        None => {}
    }
    let fresh = text(header::IF_RANGE).is_none_or(|date| parse_date(date) == Some(modified));
    match text(header::RANGE) {
        // An empty file is sent whole: some clients always ask for the first bytes.
        Some(range) if fresh && length > 0 => parse_range(range, length),
        _ => RangeOutcome::Whole,
    }
}

/// Whether a header asks for less than the whole file.
pub(crate) fn is_partial_or_conditional(headers: &HeaderMap) -> bool {
    let names = [header::RANGE, header::IF_RANGE, header::IF_MODIFIED_SINCE, header::IF_NONE_MATCH];
    names.iter().any(|name| headers.contains_key(name))
}

/// Parses a single range. Several ranges, or an unknown unit, select the whole file.
fn parse_range(text: &str, length: u64) -> RangeOutcome {
    let Some(spec) = text.trim().strip_prefix("bytes=").filter(|spec| !spec.contains(',')) else {
        return RangeOutcome::Whole;
    };
    let Some((first, last)) = spec.trim().split_once('-') else { return RangeOutcome::Unsatisfiable };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (first.is_empty(), last.is_empty()) {
        (true, true) => RangeOutcome::Unsatisfiable,
        (true, false) => match number(last) {
            Some(0) | None => RangeOutcome::Unsatisfiable,
            Some(suffix) => RangeOutcome::Part(length.saturating_sub(suffix), length),
        },
        (false, open) => match (number(first), if open { Some(u64::MAX) } else { number(last) }) {
            (Some(first), Some(last)) if first < length && first <= last => {
                RangeOutcome::Part(first, length.min(last.saturating_add(1)))
            }
            _ => RangeOutcome::Unsatisfiable,
        },
    }
}

fn whole_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT`
pub(crate) fn http_date(time: SystemTime) -> String {
    let seconds = whole_seconds(time);
    let days = seconds / 86400;
    let (year, month, day) = civil(days as i64);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

pub(super) fn parse_date(text: &str) -> Option<u64> {
    let (_, rest) = text.trim().split_once(", ")?;
    let fields: Vec<&str> = rest.split([' ', ':']).collect();
    let [day, month, year, hour, minute, second, "GMT"] = fields[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let number = |text: &str| text.parse::<u32>().ok().map(i64::from);
    let days = days_from_civil(number(year)?.clamp(1970, 9999), month, number(day)?);
    u64::try_from(days * 86400 + number(hour)? * 3600 + number(minute)? * 60 + number(second)?).ok()
}

/// Converts days since 1970 to year, month and day, counting in eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn ranges_outside_of_the_file_are_refused() {
        for bad in ["bytes=10-", "bytes=-0", "bytes=5-4", "bytes=a-b", "bytes=-", "bytes=3"] {
            assert_eq!(evaluate(&with(header::RANGE, bad), 10, at(0)), RangeOutcome::Unsatisfiable, "{bad}");
        }
    }

    #[test]
    fn one_range_is_a_part_and_several_are_the_whole() {
        let range = |text| evaluate(&with(header::RANGE, text), 10, at(0));
        assert_eq!(range("bytes=2-4"), RangeOutcome::Part(2, 5));
        assert_eq!(range("bytes=2-"), RangeOutcome::Part(2, 10));
        assert_eq!(range("bytes=-3"), RangeOutcome::Part(7, 10));
        assert_eq!(range("bytes=-99"), RangeOutcome::Part(0, 10));
        assert_eq!(range("bytes=0-1,3-4"), RangeOutcome::Whole);
        assert_eq!(range("lines=1-2"), RangeOutcome::Whole);
    }

    #[test]
    fn dates_decide_what_is_sent() {
        let date = http_date(at(784_111_777));
        assert_eq!(date, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(evaluate(&with(header::IF_MODIFIED_SINCE, &date), 1, at(784_111_777)), RangeOutcome::NotModified);
        assert_eq!(evaluate(&with(header::IF_MODIFIED_SINCE, &date), 1, at(784_111_778)), RangeOutcome::Whole);
        assert_eq!(
            evaluate(&with(header::IF_UNMODIFIED_SINCE, &date), 1, at(784_111_778)),
            RangeOutcome::PreconditionFailed
        );
        assert_eq!(evaluate(&with(header::IF_NONE_MATCH, "*"), 1, at(0)), RangeOutcome::NotModified);
    }

    proptest! {
        #[test]
        fn dates_survive_the_way_there_and_back(seconds in 0u64..253_402_300_799) {
            prop_assert_eq!(parse_date(&http_date(at(seconds))), Some(seconds));
        }

        #[test]
        fn any_text_is_a_range_or_not(text in "[ -~]{0,40}", length in 0u64..100) {
            if let RangeOutcome::Part(from, to) = evaluate(&with(header::RANGE, &text), length, at(0)) {
                prop_assert!(from <= to && to <= length);
            }
            let _ = parse_date(&text);
        }
    }
}
