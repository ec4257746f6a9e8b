//! The resource limits of a sandbox.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// This many mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Whole mebibytes, rounded down.
    pub const fn as_mib(self) -> u64 {
        self.0 >> 20
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1 << 30 && n % (1 << 30) == 0 => write!(f, "{}G", n >> 30),
            n if n >= 1 << 20 && n % (1 << 20) == 0 => write!(f, "{}M", n >> 20),
            n => write!(f, "{n}"),
        }
    }
}

impl FromStr for Bytes {
    type Err = LimitsError;

    /// Parses `512`, `64k`, `512M`, `2G` or `2GiB`. Units are powers of 1024.
    fn from_str(text: &str) -> Result<Self, LimitsError> {
        let bad = || LimitsError::NotASize(text.to_owned());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let shift = match text[digits..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(bad()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

/// The resources of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a CPU: 1500 is one and a half CPUs.
    pub cpu_millis: u32,
    /// Memory, including tmpfs. If a sandbox exceeds it, the kernel kills processes inside.
    pub memory: Bytes,
    /// Disk space. `None` means no limit of its own; some hosts cannot enforce one.
    pub disk: Option<Bytes>,
    /// The number of processes and threads together.
    pub pids: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu_millis: 2000, memory: Bytes::mib(1024), disk: None, pids: 4096 }
    }
}

/// Why limits are not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// The text is not a size.
    #[error("{0:?} is not a size; write for example 512M or 2G")]
    NotASize(String),
    /// A value is out of bounds.
    #[error("{what} must be between {min} and {max}, not {given}")]
    OutOfBounds { what: &'static str, min: String, max: String, given: String },
}

impl Limits {
    /// Checks that each value is within bounds that make sense on any host.
    pub fn check(&self) -> Result<(), LimitsError> {
        within("cpu (thousandths)", u64::from(self.cpu_millis), 50, 256_000)?;
        within_size("memory", self.memory, Bytes::mib(32), Bytes::mib(1 << 22))?;
        if let Some(disk) = self.disk {
            within_size("disk", disk, Bytes::mib(16), Bytes::mib(1 << 24))?;
        }
        within("pids", u64::from(self.pids), 8, 1 << 20)
    }

    /// The number of CPUs that programs inside see: rounded up, at least one.
    pub fn whole_cpus(&self) -> u32 {
        self.cpu_millis.div_ceil(1000).max(1)
    }
}

fn within(what: &'static str, given: u64, min: u64, max: u64) -> Result<(), LimitsError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(LimitsError::OutOfBounds { what, min: min.to_string(), max: max.to_string(), given: given.to_string() })
}

fn within_size(what: &'static str, given: Bytes, min: Bytes, max: Bytes) -> Result<(), LimitsError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(LimitsError::OutOfBounds { what, min: min.to_string(), max: max.to_string(), given: given.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_as_people_write_them() {
        assert_eq!("512M".parse(), Ok(Bytes::mib(512)));
        assert_eq!("2GiB".parse(), Ok(Bytes::mib(2048)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        for bad in ["", "M", "-1", "1.5G", "99999999999T", "1x"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn the_default_limits_are_valid_and_zero_is_not() {
        assert_eq!(Limits::default().check(), Ok(()));
        assert!(Limits { memory: Bytes(0), ..Limits::default() }.check().is_err());
        assert!(Limits { cpu_millis: 0, ..Limits::default() }.check().is_err());
    }
}
