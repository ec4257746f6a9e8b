//! `GET /isopod/host`: the machine that the server runs on, for admins.

use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use isopod_api::ApiError;
use rustix::system::{Sysinfo, sysinfo};
use serde::Serialize;
use utoipa::ToSchema;

use crate::parts::Parts;

/// The machine. Sizes are in bytes.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Host)]
pub(super) struct Host {
    cpus: usize,
    /// The average number of running tasks over 1, 5 and 15 minutes.
    load: [f64; 3],
    memory_total: u64,
    memory_available: u64,
    /// Of the file system that has the state directory. 0 if it is unknown.
    disk_total: u64,
    disk_available: u64,
}

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Result<Json<Host>, ApiError> {
    let directory = parts.state_dir.clone();
    // A file system that hangs must not stop the server.
    let looked = tokio::task::spawn_blocking(move || look(directory.as_deref())).await;
    looked.map(Json).map_err(|error| ApiError::internal(&error))
}

fn look(directory: Option<&Path>) -> Host {
    let info = sysinfo();
    let unit = u64::from(info.mem_unit);
    let total = info.totalram.saturating_mul(unit);
    let (disk_total, disk_available) = directory.and_then(disk_of).unwrap_or_default();
    Host {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        load: load_of(&info),
        memory_total: total,
        memory_available: available_memory().unwrap_or_else(|| info.freeram.saturating_mul(unit)),
        disk_total,
        disk_available,
    }
}

/// The kernel counts in steps of 1/65536.
fn load_of(info: &Sysinfo) -> [f64; 3] {
    info.loads.map(|load| u32::try_from(load).map_or(f64::from(u32::MAX), f64::from) / 65_536.0)
}

/// Free memory and what the kernel can free at once.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn disk_of(directory: &Path) -> Option<(u64, u64)> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some((found.f_blocks.saturating_mul(found.f_frsize), found.f_bavail.saturating_mul(found.f_frsize)))
}
