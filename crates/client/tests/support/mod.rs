//! Helpers that the tests share. Each test file uses a part of them.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../guest-client/tests/support/server.rs"]
pub mod server;
