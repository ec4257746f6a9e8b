//! Values that many rows of the fixtures contain.

use std::fmt::Debug;

use isopod_store::TeamId;
use isopod_store::clock::Timestamp;
use isopod_wire::{Bytes, Limits, SandboxId};

/// The server that wrote the fixtures.
pub(crate) const SERVER: &str = "ac48df3e-e4ed-4d7d-9dc8-65627bfb5441";

/// The first team, which owns nearly all rows.
pub(crate) fn team() -> TeamId {
    TeamId("1113f0a9-4f45-44b0-a887-6e9175f687b0".to_owned())
}

/// The time `seconds` after the server started.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp(1_763_200_000_000 + 1000 * seconds)
}

pub(crate) fn id(text: &str) -> SandboxId {
    text.parse().unwrap()
}

pub(crate) fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

pub(crate) fn limits() -> Limits {
    Limits { cpu_millis: 1500, memory: Bytes::mib(768), disk: Some(Bytes::mib(5 << 10)), pids: 512 }
}

/// Compares rows field by field. Secrets are not printed, so they are not compared.
#[track_caller]
pub(crate) fn assert_same<T: Debug>(found: &T, wanted: &T) {
    assert_eq!(format!("{found:#?}"), format!("{wanted:#?}"));
}
