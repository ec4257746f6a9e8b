//! The sandbox service: what a team puts between its agents and sandboxes.

pub mod backend;
