//! `isopod env`: lets programs written for E2B find a server of this machine. It prints the variables that newer SDKs go
//! by, or runs a program under which every SDK works: in a view of the machine's files of its own, the server has E2B's
//! names and certificates. Nothing outside that program changes.
//!
//! ```text
//! isopod env -- COMMAND          asks the server, plans, and becomes
//!   isopod __env -- COMMAND      makes the view, supervises, and starts
//!     isopod __env-exec          gives back signals, and becomes
//!       COMMAND
//! ```

mod cover;
pub(crate) mod enter;
pub(crate) mod exec;
mod namespace;
mod plan;
mod print;
mod server;
mod supervise;
mod variables;
mod view;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use isopod_client::sandbox::ServedNames;

use crate::args::EnvArgs;
use crate::env_names;
use crate::failure::Hint;
use plan::Plan;
use server::{FoundServer, find_server};

/// What the SDKs go to when they are told nothing but a key.
const E2B: &str = "e2b.app";

pub(super) async fn run(state_dir: &Path, args: EnvArgs) -> anyhow::Result<ExitCode> {
    let found = find_server(state_dir, &args).await?;
    if args.command.is_empty() {
        print::print(&found, &args);
        return Ok(ExitCode::SUCCESS);
    }
    let names = names_of(&found)?;
    let domain = choose_domain(&names, args.domain_of_command.as_deref())?;
    let mut plan = Plan::new(&names, |name| std::env::var_os(name))?;
    plan.has_docker |= args.docker;
    become_supervisor(&found, &domain, &plan, &args)
}

fn names_of(found: &FoundServer) -> anyhow::Result<ServedNames> {
    if !found.is_here {
        return Err(Hint::new(
            format!("the server at {} is on another machine, and its names are not known here", found.api_url),
            "without a command, isopod env prints the variables that newer SDKs need",
        ));
    }
    match (&found.names.names, &found.names.problem) {
        (Some(names), _) => Ok(names.clone()),
        (None, problem) => Err(Hint::new(
            format!("the server cannot run programs: {}", problem.as_deref().unwrap_or("it does not say why")),
            "change that and restart it; without a command, isopod env prints the variables that newer SDKs need",
        )),
    }
}

fn choose_domain(names: &ServedNames, wanted: Option<&str>) -> anyhow::Result<String> {
    let is_there = |domain: &str| names.domains.iter().any(|known| known == domain);
    match wanted.map(str::to_ascii_lowercase) {
        Some(wanted) if is_there(&wanted) => Ok(wanted),
        Some(wanted) => Err(Hint::new(
            format!("the server does not answer for {wanted:?}, only for {}", names.domains.join(", ")),
            format!("start it with --env-domains {},{wanted}", names.domains.join(",")),
        )),
        None if is_there(E2B) => Ok(E2B.to_owned()),
        None => Ok(names.domains.first().cloned().unwrap_or_else(|| E2B.to_owned())),
    }
}

/// Namespaces can only be made by a process without threads, so the rest is done by a new program in this process.
fn become_supervisor(found: &FoundServer, domain: &str, plan: &Plan, args: &EnvArgs) -> anyhow::Result<ExitCode> {
    let mut supervisor = Command::new("/proc/self/exe");
    supervisor.arg("__env").arg("--").args(&args.command).env(env_names::ENV_PLAN, plan.to_text()?);
    variables::of_command(&found.key, domain, plan, |name| std::env::var_os(name)).apply(&mut supervisor);
    Err(supervisor.exec()).context("could not start the process that runs the command")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_command_finds_the_server_as_e2b_unless_it_is_told_a_domain_that_the_server_answers_for() {
        let names = |domains: &[&str]| ServedNames {
            domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
            address: Ipv4Addr::LOCALHOST,
            authority: String::new(),
        };
        let of = |domains: &[&str], wanted| choose_domain(&names(domains), wanted).ok();
        assert_eq!(of(&["box.example", E2B], None).as_deref(), Some(E2B));
        assert_eq!(of(&["box.example"], None).as_deref(), Some("box.example"));
        assert_eq!(of(&["box.example", E2B], Some("Box.Example")).as_deref(), Some("box.example"));
        assert_eq!(of(&[E2B], Some("box.example")), None);
    }
}
