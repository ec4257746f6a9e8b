//! What ended sandboxes leave for the next ones: unused networks, directories, and slots that are being released.

mod directories;
mod networks;
mod slots;

pub(crate) use directories::RecycledDirectories;
pub(crate) use networks::{RecycledNetwork, RecycledNetworks, SandboxNetwork};
pub(crate) use slots::SlotReleaser;
