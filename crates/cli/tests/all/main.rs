//! Real sandboxes and the command line.
//!
//! One binary, because linking is what building tests takes the time for. `cargo xtask test cli::run` runs one file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "../builds/mod.rs"]
mod builds;
#[path = "../cable/mod.rs"]
mod cable;
#[path = "../common/mod.rs"]
mod common;
#[path = "../memory/mod.rs"]
mod memory;
#[path = "../pty/mod.rs"]
mod pty;
#[path = "../served/mod.rs"]
mod served;
#[path = "../userland/mod.rs"]
mod userland;

mod adoption;
mod backends;
mod backup;
mod build;
mod checkpoint_faults;
mod checkpoints;
mod config;
mod crash;
mod disk_full;
mod docs;
mod doctor;
mod env;
mod export;
mod faults;
mod first_start;
mod host_changes;
mod hostile;
mod hostile_names;
mod images;
mod interpreter;
mod kernel_features;
mod lifecycle;
mod memory_trial;
mod packages;
mod packed_memory;
mod prune;
mod recycling;
mod resumes;
mod run;
mod sandbox_service;
mod service;
mod sessions;
mod setup;
mod shortage;
mod snapshot_commands;
mod start_images;
mod storage;
mod template_server;
mod terminal;
mod testkit;
mod tls;
mod toolkit;
mod traces;
mod trust;
mod userlands;
mod verbs;
mod workflow_tree;
mod workflows;
mod workspace;
