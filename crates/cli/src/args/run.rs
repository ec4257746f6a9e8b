//! What `isopod run` can be told.

use std::path::PathBuf;

use isopod_wire::{Bytes, Cidr, KernelFeature};

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Template to start from [default: base, or code-interpreter-v1 for a notebook].
    #[arg(long)]
    pub(crate) template: Option<String>,
    /// Number of CPUs, such as 2 or 0.5.
    #[arg(long, default_value = "2", value_parser = parse_cpus)]
    pub(crate) cpu: u32,
    /// Memory, such as 512M or 2G.
    #[arg(long, default_value = "1G")]
    pub(crate) memory: Bytes,
    /// Disk space, such as 1G [default: no separate limit].
    #[arg(long)]
    pub(crate) disk: Option<Bytes>,
    /// Maximum number of processes and threads.
    #[arg(long, default_value = "4096")]
    pub(crate) pids: u32,
    /// Kill the command after this many seconds (exit code 124).
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<f64>,
    /// Disable outbound network access.
    #[arg(long)]
    pub(crate) no_network: bool,
    /// Address or CIDR to allow, even if denied otherwise.
    #[arg(long, value_name = "CIDR")]
    pub(crate) allow_out: Vec<Cidr>,
    /// Address or CIDR to deny.
    #[arg(long, value_name = "CIDR")]
    pub(crate) deny_out: Vec<Cidr>,
    /// Kernel features that the sandbox has besides: `userns` (namespaces inside), `fuse` (/dev/fuse and mounting).
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    pub(crate) allow: Vec<KernelFeature>,
    /// Set an environment variable; NAME alone passes on its current value.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Copy HOST to INSIDE in the sandbox before the command runs, and back afterwards unless `:ro` is given.
    #[arg(short, long = "volume", value_name = "HOST:INSIDE[:ro]")]
    pub(crate) volumes: Vec<String>,
    /// User to run the command as.
    #[arg(short, long, default_value = "user")]
    pub(crate) user: String,
    /// Working directory of the command.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Allocate a terminal for the command.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Do not pass on the host's certificates, proxies and package sources.
    #[arg(long)]
    pub(crate) no_host_settings: bool,
    /// Copy the host's /usr once instead of using it directly.
    #[arg(long)]
    pub(crate) frozen: bool,
    /// Print one JSON object with the output and exit code.
    #[arg(long, conflicts_with = "tty")]
    pub(crate) json: bool,
    /// Run the code cells of a notebook and write their output back into it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tty", "json", "command"])]
    pub(crate) notebook: Option<PathBuf>,
    /// File to write the notebook and its output to [default: the notebook itself].
    #[arg(long, value_name = "FILE", requires = "notebook")]
    pub(crate) output: Option<PathBuf>,
    /// Continue after a cell that fails.
    #[arg(long, requires = "notebook")]
    pub(crate) allow_errors: bool,
    /// Command or script (.py, .js, .sh) to run, with its arguments.
    #[arg(trailing_var_arg = true, required_unless_present = "notebook", value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Reads `0.5` as 500 thousandths.
fn parse_cpus(text: &str) -> Result<u32, String> {
    let bad = || format!("{text:?} is not a number of CPUs; write for example 2 or 0.5");
    let cpus: f64 = text.parse().map_err(|_| bad())?;
    if !(0.05..=256.0).contains(&cpus) {
        return Err(format!("the number of CPUs must be between 0.05 and 256, not {text}"));
    }
    Ok((cpus * 1000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_read_in_thousandths() {
        assert_eq!(parse_cpus("0.5"), Ok(500));
        assert_eq!(parse_cpus("2"), Ok(2000));
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "two"] {
            assert!(parse_cpus(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
