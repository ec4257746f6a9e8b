//! When to retry, and how long to wait before. The rule is pure; `call` acts on it.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::error::retry_after;

/// The maximum number of retries of a call.
pub(super) const MAX_RETRIES: u32 = 3;
/// The longest wait that is accepted from a server. If it is longer, the caller gets the error.
const MAX_WAIT: Duration = Duration::from_secs(60);
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// Returns the wait before the next attempt, or `None` if the reply is final. `roll` is a random number from 0 to 1.
pub(super) fn wait_before_retry(retries: u32, status: StatusCode, headers: &HeaderMap, roll: f64) -> Option<Duration> {
    let asked = headers.get("should-retry").and_then(|value| value.to_str().ok());
    let worthwhile = match asked {
        Some("true") => !status.is_success(),
        Some("false") => false,
        _ => matches!(status.as_u16(), 429 | 502 | 503 | 504),
    };
    if !worthwhile || retries >= MAX_RETRIES {
        return None;
    }
    // Spread the retries of clients that were refused at the same time.
    let own = FIRST_WAIT.saturating_mul(2u32.saturating_pow(retries)).mul_f64(0.5 + roll.clamp(0.0, 1.0) / 2.0);
    match retry_after(headers) {
        Some(wait) if wait > MAX_WAIT => None,
        Some(wait) => Some(wait + own / 4),
        None => Some(own),
    }
}

/// A random number from 0 to 1, good enough to spread clients in time.
pub(super) fn roll() -> f64 {
    let random = RandomState::new().hash_one(0u8);
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn refusals_that_will_stay_are_not_repeated() {
        for status in [200u16, 201, 400, 401, 404, 409, 500, 501] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(wait_before_retry(0, status, &HeaderMap::new(), 0.5), None, "{status}");
        }
        let never = headers(&[("should-retry", "false")]);
        assert_eq!(wait_before_retry(0, StatusCode::SERVICE_UNAVAILABLE, &never, 0.5), None);
        assert_eq!(wait_before_retry(MAX_RETRIES, StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), 0.5), None);
    }

    #[test]
    fn the_server_says_how_long_to_wait() {
        let wait =
            |after| wait_before_retry(0, StatusCode::TOO_MANY_REQUESTS, &headers(&[("retry-after", after)]), 0.0);
        assert!(wait("2").unwrap() >= Duration::from_secs(2));
        assert!(wait("2").unwrap() < Duration::from_secs(3));
        assert_eq!(wait("86400"), None);
        assert!(wait("soon").unwrap() < Duration::from_secs(1));
        let asked = headers(&[("should-retry", "true")]);
        assert!(wait_before_retry(0, StatusCode::CONFLICT, &asked, 0.0).is_some());
    }

    proptest! {
        #[test]
        fn waits_grow_and_stay_bounded(retries in 0u32..MAX_RETRIES, roll in 0.0f64..1.0) {
            let wait = wait_before_retry(retries, StatusCode::BAD_GATEWAY, &HeaderMap::new(), roll).unwrap();
            prop_assert!(wait >= FIRST_WAIT / 2 && wait <= Duration::from_secs(2));
        }
    }

    #[test]
    fn rolls_are_between_zero_and_one() {
        assert!((0..100).map(|_| roll()).all(|roll| (0.0..1.0).contains(&roll)));
    }
}
