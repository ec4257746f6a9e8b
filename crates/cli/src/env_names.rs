//! Environment variables that are read. Nothing below this crate reads any.

/// The state directory.
pub(crate) const STATE_DIR: &str = "ISOPOD_STATE_DIR";
/// Where the server listens.
pub(crate) const LISTEN: &str = "ISOPOD_LISTEN";
/// The first API key.
pub(crate) const API_KEY: &str = "ISOPOD_API_KEY";
/// The domain of sandbox host names.
pub(crate) const DOMAIN: &str = "ISOPOD_DOMAIN";
/// What is logged, such as `info` or `isopod_node=debug`.
pub(crate) const LOG: &str = "ISOPOD_LOG";
