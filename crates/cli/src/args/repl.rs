//! What `isopod repl` can be told.

use isopod_wire::Bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplArgs {
    /// The language to type: python, javascript, typescript, bash, or any that the template has a kernel for.
    #[arg(short, long, default_value = "python")]
    pub(crate) language: String,
    /// The template to start from, which must have an interpreter.
    #[arg(long, default_value = "code-interpreter-v1")]
    pub(crate) template: String,
    /// Memory, such as 512M or 2G.
    #[arg(long, default_value = "1G")]
    pub(crate) memory: Bytes,
    /// No outbound network.
    #[arg(long)]
    pub(crate) no_network: bool,
    /// An environment variable, as NAME=VALUE or NAME to pass it on.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Files for the sandbox, as HOST_PATH:PATH_INSIDE. Copied in before, and back after unless it ends in `:ro`.
    #[arg(short, long = "volume", value_name = "HOST:INSIDE[:ro]")]
    pub(crate) volumes: Vec<String>,
}
