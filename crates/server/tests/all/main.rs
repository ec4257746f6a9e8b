//! Everything that the server does, over real TCP, mostly with a node in plain Rust.
//!
//! One binary, because linking is what building tests takes the time for. `cargo xtask test server::runs` runs one file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod support;

mod agent_routes;
mod audit;
mod backends;
mod broken_off;
mod cleanup;
mod cluster;
mod dashboard;
mod default_mounts;
mod delivery;
mod drain;
mod edge;
mod executions;
mod faults;
mod file_storage;
mod fragments;
mod lifecycle;
mod live_output;
mod logs;
mod mcp;
mod openapi;
mod quotas;
mod recheck;
mod routes;
mod run_checkpoints;
mod runs;
mod sandboxes;
mod service;
mod sessions;
mod silent_bodies;
mod snapshots;
mod stalled;
mod store_trouble;
mod templates;
mod tls;
mod toolkit;
mod two_servers;
mod unknown_fields;
mod views;
mod volumes;
mod web_search;
mod webhooks;
