//! `isopod setup`: installs packages of the host that Isopod can do without, by one call of apt.

use std::io::Write as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::args::SetupArgs;
use crate::failure::Hint;
use crate::host_packages::{HostPackage, has_program, missing_packages};

const INSTALL: [&str; 3] = ["install", "--yes", "--no-install-recommends"];

pub(super) fn run(args: &SetupArgs) -> anyhow::Result<ExitCode> {
    let packages = missing_packages();
    if packages.is_empty() {
        say!("nothing is missing");
        return Ok(ExitCode::SUCCESS);
    }
    say!("This machine lacks:");
    for HostPackage { name, purpose, .. } in &packages {
        say!("  {name:<14} {purpose}");
    }
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    check_can_install(&names)?;
    say!("apt-get {} {}", INSTALL.join(" "), names.join(" "));
    if !args.yes && !confirmed()? {
        say!("nothing was installed; answer y, or add --yes");
        return Ok(ExitCode::FAILURE);
    }
    install(&names)?;
    say!("installed; restart `isopod serve` if it runs");
    Ok(ExitCode::SUCCESS)
}

fn check_can_install(names: &[&str]) -> anyhow::Result<()> {
    if !has_program("apt-get") {
        return Err(Hint::new(
            "this machine has no apt-get",
            format!("install what these Debian packages bring in its own way: {}", names.join(" ")),
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Hint::new("only root can install packages", "sudo isopod setup"));
    }
    Ok(())
}

fn confirmed() -> anyhow::Result<bool> {
    eprint!("Go on? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The package lists of a fresh machine are empty or old; where they cannot be renewed, those that are there may do.
fn install(names: &[&str]) -> anyhow::Result<()> {
    if let Err(error) = apt_get(&["update", "-qq"]) {
        say_error!("warning: could not renew the package lists: {error:#}");
    }
    apt_get(&[&INSTALL[..], names].concat()).context("could not install the packages")
}

fn apt_get(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    let status = command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    let status = status.context("could not run apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed ({status})", arguments[0]);
    }
    Ok(())
}
