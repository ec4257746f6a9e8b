//! Helpers that the tests share. Each test file uses a part of them.
#![allow(dead_code, unreachable_pub)]

pub mod frames;
pub mod real_guest;
pub mod server;
