//! `isopod service`: a systemd unit for the server.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::args::{ServiceArgs, ServiceCommand, ServiceInstallArgs};
use crate::failure::Hint;
use crate::privilege::require_root;

const UNIT: &str = "/etc/systemd/system/isopod.service";

pub(super) fn run(state_dir: Option<&Path>, args: &ServiceArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ServiceCommand::Install(install) => {
            let program = std::env::current_exe().context("could not find this program's own path")?;
            let unit = unit(&program, state_dir, install)?;
            match install.print {
                true => crate::say::print(format_args!("{unit}")),
                false => write(&unit)?,
            }
        }
        ServiceCommand::Uninstall => remove()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(unit: &str) -> anyhow::Result<()> {
    require_root()?;
    require_systemd()?;
    std::fs::write(UNIT, unit).with_context(|| format!("could not write {UNIT}"))?;
    systemctl(&["daemon-reload"])?;
    say!("wrote {UNIT}\n");
    say!("Start it now and with the machine: systemctl enable --now isopod");
    say!("Make a key:                        isopod key create --local");
    say!("Read its log:                      journalctl -u isopod");
    Ok(())
}

fn remove() -> anyhow::Result<()> {
    require_root()?;
    if !Path::new(UNIT).exists() {
        say!("there is no {UNIT}");
        return Ok(());
    }
    require_systemd()?;
    systemctl(&["disable", "--now", "isopod"])?;
    std::fs::remove_file(UNIT).with_context(|| format!("could not remove {UNIT}"))?;
    systemctl(&["daemon-reload"])?;
    say!("removed {UNIT}; sandboxes and the state directory stay, isopod uninstall removes them");
    Ok(())
}

fn require_systemd() -> anyhow::Result<()> {
    // What systemd itself says to look for.
    if Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    Err(Hint::new("this machine is not run by systemd", "isopod service install --print shows the unit as a model"))
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("systemctl").args(arguments).status().context("could not run systemctl")?;
    if !status.success() {
        bail!("systemctl {} failed", arguments.join(" "));
    }
    Ok(())
}

/// `KillMode=process`, `Delegate=yes` and `OOMPolicy=continue` are what lets sandboxes outlive a restart: systemd then
/// ends the server alone, leaves the cgroups below the service to it, and takes a sandbox that ran out of memory for what
/// it is.
fn unit(program: &Path, state_dir: Option<&Path>, args: &ServiceInstallArgs) -> anyhow::Result<String> {
    let mut words = vec![program.to_path_buf()];
    // Only where it was said: what is typed would come before the settings file.
    if let Some(state_dir) = state_dir {
        words.extend(["--state-dir".into(), absolute(state_dir)?]);
    }
    words.push("serve".into());
    if let Some(config) = &args.config {
        words.extend(["--config".into(), absolute(config)?]);
    }
    words.extend(args.serve.iter().map(PathBuf::from));
    let command = words.iter().map(|word| quoted(word)).collect::<anyhow::Result<Vec<_>>>()?.join(" ");
    let mut unit = String::new();
    write!(
        unit,
        "[Unit]\n\
         Description=Isopod: sandboxes for AI agents\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         ExecStart={command}\n\
         Restart=always\n\
         RestartSec=1\n\
         # Sandboxes go on running while the server restarts, and the new server takes them over.\n\
         KillMode=process\n\
         Delegate=yes\n\
         OOMPolicy=continue\n\
         # When the host shuts down, the memory of paused sandboxes goes to disk first.\n\
         TimeoutStopSec=300\n\
         LimitNOFILE=1048576\n\
         TasksMax=infinity\n\
         # Secrets such as ISOPOD_API_KEY=e2b_... can stand in this file; the server does not need it.\n\
         EnvironmentFile=-/etc/isopod/environment\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )?;
    Ok(unit)
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("could not tell where {} is", path.display()))
}

/// As systemd reads a command line: quoted where needed, with its own signs doubled.
fn quoted(word: &Path) -> anyhow::Result<String> {
    let word = word.to_str().with_context(|| format!("{} is not UTF-8", word.display()))?;
    if word.chars().any(char::is_control) {
        bail!("{word:?} cannot stand in a unit");
    }
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let is_plain = !word.is_empty() && !word.contains([' ', '"', '\'', '\\', ';']);
    Ok(if is_plain { escaped } else { format!("\"{escaped}\"") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_break_out_of_the_command_line() {
        let quoted = |word: &str| quoted(Path::new(word));
        assert_eq!(quoted("/usr/bin/isopod").unwrap(), "/usr/bin/isopod");
        assert_eq!(quoted("/a b/%i $HOME").unwrap(), "\"/a b/%%i $$HOME\"");
        assert_eq!(quoted("a\"b").unwrap(), "\"a\\\"b\"");
        assert!(quoted("a\nExecStartPre=/bin/evil").is_err());
    }
}
