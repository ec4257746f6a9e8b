//! Names that other programs chose before Isopod existed. They keep working here because these names stay as they are; every
//! other name is our own.

/// The header that names the team on whose behalf a person calls.
pub const TEAM_HEADER: &str = "x-supabase-team";

/// The header that carries the person's token.
pub const TOKEN_HEADER: &str = "x-supabase-token";

/// Where programs expect the workspace, on the host and in sandboxes.
pub const WORKSPACE_PATH: &str = "/opt/sentient";

/// The Redis key that holds the sandbox of a run.
pub fn run_session_key(run: &str) -> String {
    format!("raro:e2b_session:{run}")
}

/// The Redis key that holds the MD5 of an input file that the sandbox of a run has.
pub fn run_file_key(run: &str, file: &str) -> String {
    format!("raro:e2b_files:{run}:{file}")
}
