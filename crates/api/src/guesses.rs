//! Limits how often one address may be wrong (a short URL, a key), so that nobody finds those of others by trying.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::client_network::ClientNetwork;

const WINDOW: Duration = Duration::from_secs(60);
/// With more networks than this, new ones share one limit.
const MAX_NETWORKS: usize = 10_000;

/// The guesses of the last minute.
#[derive(Debug)]
pub struct Guesses {
    per_minute: u32,
    /// Locked only to count.
    windows: Mutex<HashMap<Guessers, Window>>,
}

/// Whose guesses count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Guessers {
    Of(ClientNetwork),
    Others,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    ends: Instant,
    count: u32,
}

impl Guesses {
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute, windows: Mutex::default() }
    }

    /// Counts a guess. Returns the time to wait if there were too many.
    pub fn take(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let guessers = counted_guessers(&mut windows, address, now);
        let fresh = Window { ends: now + WINDOW, count: 0 };
        let window = windows.entry(guessers).or_insert(fresh);
        if window.ends <= now {
            *window = fresh;
        }
        if window.count >= self.per_minute {
            return Err(window.ends - now);
        }
        window.count += 1;
        Ok(())
    }

    /// It was not a guess after all.
    pub fn give_back(&self, address: IpAddr) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let guessers = Guessers::Of(ClientNetwork::of(address));
        let guessers = if windows.contains_key(&guessers) { guessers } else { Guessers::Others };
        if let Some(window) = windows.get_mut(&guessers) {
            window.count = window.count.saturating_sub(1);
        }
    }
}

fn counted_guessers(windows: &mut HashMap<Guessers, Window>, address: IpAddr, now: Instant) -> Guessers {
    let guessers = Guessers::Of(ClientNetwork::of(address));
    if windows.len() >= MAX_NETWORKS && !windows.contains_key(&guessers) {
        windows.retain(|_, window| window.ends > now);
        if windows.len() >= MAX_NETWORKS {
            return Guessers::Others;
        }
    }
    guessers
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_runs_out_of_guesses_for_a_minute_and_others_do_not() {
        let (guesses, now) = (Guesses::new(2), Instant::now());
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!(guesses.take(one, now).is_ok() && guesses.take(one, now).is_ok());
        assert_eq!(guesses.take(one, now), Err(WINDOW));
        assert!(guesses.take(address("::ffff:192.0.2.1"), now).is_err(), "the same address in another form");
        assert!(guesses.take(other, now).is_ok());
        assert!(guesses.take(one, now + WINDOW).is_ok());
    }

    #[test]
    fn what_was_found_is_no_guess() {
        let (guesses, now, one) = (Guesses::new(1), Instant::now(), address("192.0.2.1"));
        for _ in 0..5 {
            assert!(guesses.take(one, now).is_ok());
            guesses.give_back(one);
        }
    }

    #[test]
    fn a_network_of_ipv6_counts_once() {
        let (guesses, now) = (Guesses::new(1), Instant::now());
        assert!(guesses.take(address("2001:db8::1"), now).is_ok());
        assert!(guesses.take(address("2001:db8::2"), now).is_err());
        assert!(guesses.take(address("2001:db8:0:1::1"), now).is_ok());
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_share_what_is_left() {
        let (guesses, now) = (Guesses::new(1), Instant::now());
        for number in 0..MAX_NETWORKS as u32 {
            assert!(guesses.take(IpAddr::V4(Ipv4Addr::from_bits(number)), now).is_ok());
        }
        assert!(guesses.take(address("192.0.2.1"), now).is_ok());
        assert!(guesses.take(address("192.0.2.2"), now).is_err());
        assert_eq!(guesses.windows.lock().unwrap().len(), MAX_NETWORKS + 1);
        assert!(guesses.take(address("192.0.2.2"), now + WINDOW).is_ok());
        assert_eq!(guesses.windows.lock().unwrap().len(), 1);
    }
}
