//! A server with a node in plain Rust, for tests over real TCP.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "examples/fake_server.rs includes some of these files, and a panic fails the test"
)]

pub mod backend;
pub mod browser;
pub mod builder;
pub mod client;
pub mod cluster;
pub mod fault_proxy;
pub mod guest;
pub mod hostile;
pub mod log;
pub mod node;
pub mod outside;
pub mod runs;
pub mod server;

pub use backend::FakeBackend;
pub use browser::{Browser, between};
pub use client::{Answer, Client};
pub use cluster::Cluster;
pub use fault_proxy::{Fault, FaultProxy};
pub use node::FakeNode;
pub use server::Server;

pub use isopod_store::testing::{postgres, redis};
