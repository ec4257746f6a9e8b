//! Two clocks that must not be mixed up, and the durations that servers agree on.

use std::time::Duration;

/// A moment by the database's clock, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatabaseTime(pub i64);

/// A moment by the clock of one server, since any moment before. The clock never goes back, and goes on while the machine
/// sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerTime(pub Duration);

/// How often a server has joined or was given up. Zero: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// The durations of one server's membership. They are in its row, so that all others use the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease holds after it was renewed.
    pub lease: Duration,
    /// How long others wait after that before they give the server up.
    pub grace: Duration,
}

/// A lease is renewed this often while it holds, so that a slow database or a lost message doesn't end it.
const RENEWALS_PER_LEASE: u32 = 5;

impl DatabaseTime {
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl ServerTime {
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Epoch {
    pub(super) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Terms {
    pub fn renew_every(self) -> Duration {
        self.lease / RENEWALS_PER_LEASE
    }

    /// How long a server may decide after it has sent a renewal that succeeded. Shorter than the lease by a tenth, in case its
    /// clock is slower than the database's.
    pub(super) fn decides_for(self) -> Duration {
        self.lease - self.lease / 10
    }

    /// How long it may pass traffic on to its sandboxes. Two percent shorter than it takes others to give it up.
    pub(super) fn serves_for(self) -> Duration {
        let whole = self.lease + self.grace;
        whole - whole / 50
    }
}
