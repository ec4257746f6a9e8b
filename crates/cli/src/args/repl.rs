//! What `isopod repl` can be told.

use isopod_wire::Bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplArgs {
    /// Language: python, javascript, typescript, bash, or any other that the template has a kernel for.
    #[arg(short, long, default_value = "python")]
    pub(crate) language: String,
    /// Template to start from; it must have an interpreter.
    #[arg(long, default_value = "code-interpreter-v1")]
    pub(crate) template: String,
    /// Memory, such as 512M or 2G.
    #[arg(long, default_value = "1G")]
    pub(crate) memory: Bytes,
    /// Disable outbound network access.
    #[arg(long)]
    pub(crate) no_network: bool,
    /// Set an environment variable; NAME alone passes on its current value.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Copy HOST to INSIDE in the sandbox before the session, and back afterwards unless `:ro` is given.
    #[arg(short, long = "volume", value_name = "HOST:INSIDE[:ro]")]
    pub(crate) volumes: Vec<String>,
}
