//! What ended sandboxes leave for the next ones: networks that were never used, directories, and slots on their way back.

mod directories;
mod networks;
mod slots;

pub(crate) use directories::RecycledDirectories;
pub(crate) use networks::{RecycledNetwork, RecycledNetworks, SandboxNetwork};
pub(crate) use slots::SlotReleaser;
