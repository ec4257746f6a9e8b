//! Slots: numbers for what the sandboxes of all state directories share on a host, which are id ranges and network
//! addresses. A claim is a symbolic link, which only one process can create. Like the sandboxes, claims do not survive
//! a reboot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::state::{RUN_DIR, StateError, make_private_directory};

/// A number below [`Slot::COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Slot(pub(crate) u32);

/// Why no slot is available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotError {
    #[error("all {} slots are taken", Slot::COUNT)]
    None,
    #[error("could not claim a slot")]
    Io(#[source] io::Error),
    #[error(transparent)]
    State(#[from] StateError),
}

/// The first host id. The ids below are in the ranges that distributions assign to users and container managers.
const FIRST_ID: u32 = 0x7000_0000;
const IDS_PER_SLOT: u32 = 0x1_0000;

impl Slot {
    /// How many sandboxes a host can have.
    pub(crate) const COUNT: u32 = 4000;

    /// The host id of root in the sandbox.
    pub(crate) fn first_id(self) -> u32 {
        FIRST_ID + self.0 * IDS_PER_SLOT
    }

    /// All host ids of the sandbox.
    pub(crate) fn ids(self) -> std::ops::Range<u32> {
        self.first_id()..self.first_id() + IDS_PER_SLOT
    }

    /// The same number, as the `network` crate's type.
    pub(crate) fn on_network(self) -> isopod_network::Slot {
        isopod_network::Slot(self.0)
    }

    /// Claims a free slot. `claim` names its user, for sweeps.
    pub(crate) fn claim(claim: &str) -> Result<Self, SlotError> {
        /// Where the last search ended, so that slots that were just released are reused last.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        make_private_directory(&directory())?;
        for _ in 0..Self::COUNT {
            let slot = Self(NEXT.fetch_add(1, Ordering::Relaxed) % Self::COUNT);
            match slot.try_claim(claim) {
                Ok(()) => return Ok(slot),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(SlotError::Io(error)),
            }
        }
        Err(SlotError::None)
    }

    fn try_claim(self, claim: &str) -> io::Result<()> {
        // A link is created together with its text. A file would be empty for a moment, and if its creator died then,
        // it would never have an owner.
        std::os::unix::fs::symlink(claim, self.file())
    }

    /// Releases the slot if it is claimed with this text.
    pub(crate) fn release(self, claim: &str) {
        if self.is_claimed_with(claim) {
            let _ = fs::remove_file(self.temporary_file());
            // Nobody else removes our claim.
            let _ = fs::remove_file(self.file());
        }
    }

    /// Changes the text of the caller's claim without releasing the slot in between.
    pub(crate) fn reclaim(self, claim: &str, new: &str) -> io::Result<()> {
        if !self.is_claimed_with(claim) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let temporary = self.temporary_file();
        // It may be left by a process that was killed here. Only the holder of the slot gets here.
        let _ = fs::remove_file(&temporary);
        std::os::unix::fs::symlink(new, &temporary)?;
        fs::rename(&temporary, self.file())
    }

    pub(crate) fn is_claimed_with(self, claim: &str) -> bool {
        fs::read_link(self.file()).is_ok_and(|found| found.as_os_str() == claim)
    }

    /// The text of its claim.
    pub(crate) fn claim_text(self) -> Option<String> {
        fs::read_link(self.file()).ok().map(|text| text.to_string_lossy().into_owned())
    }

    /// All claims, with their texts.
    pub(crate) fn claims() -> io::Result<Vec<(Self, String)>> {
        let entries = match fs::read_dir(directory()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut claims = Vec::new();
        for entry in entries {
            let entry = entry?;
            if let Ok(number) = entry.file_name().to_string_lossy().parse() {
                let text = fs::read_link(entry.path()).unwrap_or_default();
                claims.push((Self(number), text.to_string_lossy().into_owned()));
            }
        }
        Ok(claims)
    }

    /// The number of claims.
    pub(crate) fn count_claims() -> io::Result<u32> {
        let entries = match fs::read_dir(directory()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            other => other?,
        };
        let numbers = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
        Ok(u32::try_from(numbers.count()).unwrap_or(u32::MAX))
    }

    fn file(self) -> PathBuf {
        directory().join(self.0.to_string())
    }

    fn temporary_file(self) -> PathBuf {
        directory().join(format!("{}.new", self.0))
    }
}

fn directory() -> PathBuf {
    Path::new(RUN_DIR).join("slots")
}
