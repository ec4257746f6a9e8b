//! Whether limits bite: a small sandbox tries to pass each of its own. What it tries is bounded, so that a host on which a
//! limit means nothing survives the question.

use std::path::Path;

use anyhow::Context;
use isopod_client::guest::{Guest, Output, StartProcess};
use isopod_isolation::cgroup::{Cgroups, Layout, SandboxCgroup};
use isopod_node::{Node, NodeConfig, StateRoot};
use isopod_wire::node::{NodeApi, SandboxSpec};
use isopod_wire::{Bytes, Limits, NetworkPolicy, SandboxId};

use super::{Finding, memory};
use crate::commands::node_config;

const MEMORY: Bytes = Bytes::mib(128);
const DISK: Bytes = Bytes::mib(32);
const PIDS: u32 = 64;
const CPU_MILLIS: u32 = 250;

const ENABLE: &str = "is the controller on? see cgroup_enable= and cgroup_disable= on the kernel's command line";

/// What happened when a limit was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    /// What the sandbox wanted was given to it.
    succeeded: bool,
    /// The kernel counted that it stopped something; `None` where it does not count.
    stopped: Option<bool>,
}

impl Trial {
    fn bites(self) -> bool {
        self.stopped.unwrap_or(!self.succeeded)
    }
}

/// Tries all limits. `with_disk` says whether the disk can have one.
pub(super) async fn measure(state_dir: &Path, with_disk: bool) -> Vec<Finding> {
    try_all(state_dir, with_disk).await.unwrap_or_else(|error| {
        vec![Finding::fail("sandbox", format!("{error:#}"), "what else is marked FAIL or warn may be the cause")]
    })
}

async fn try_all(state_dir: &Path, with_disk: bool) -> anyhow::Result<Vec<Finding>> {
    let config = NodeConfig { criu: node_config::find_criu(), ..node_config::for_command(state_dir)? };
    let node = Node::open(StateRoot::open(state_dir)?, config).await?;
    let findings = try_in(&node, state_dir, with_disk).await;
    node.close().await;
    findings
}

async fn try_in(node: &Node, state_dir: &Path, with_disk: bool) -> anyhow::Result<Vec<Finding>> {
    let spec = spec(with_disk)?;
    let incarnation = node.create(spec.clone()).await.context("could not make a sandbox")?;
    let guest = Guest::over_unix(node.guest_socket(&incarnation).context("the sandbox is gone")?).with_user("user");
    let tag = StateRoot::open(state_dir)?.tag().to_owned();
    let cgroup = Cgroups::open(Layout::detect()?, &tag)?.group(incarnation.execution.as_str());

    let mut findings = vec![Finding::ok("sandbox", "one was made, and its guest answers")];
    findings.extend(memory::try_saving(node).await);
    findings.push(told("memory limit", &format!("{MEMORY} of memory"), try_memory(&guest, &cgroup).await?));
    findings.push(told("cpu limit", "a quarter of a CPU", try_cpu(&guest, &cgroup).await?));
    if with_disk {
        findings.push(told("disk limit", &format!("{DISK} on disk"), try_disk(&guest).await?));
    }
    // The last one: until its processes have ended there is no room for another.
    findings.push(told("pids limit", &format!("{PIDS} processes"), try_pids(&guest).await?));
    Ok(findings)
}

fn told(what: &'static str, limit: &str, trial: Trial) -> Finding {
    match trial.bites() {
        true => Finding::ok(what, format!("bites: {limit} and no more")),
        false => Finding::fail(what, format!("does not bite: a sandbox took more than {limit}"), ENABLE),
    }
}

fn spec(with_disk: bool) -> anyhow::Result<SandboxSpec> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes)?;
    Ok(SandboxSpec {
        sandbox: SandboxId::from_random(bytes),
        template: "base".to_owned(),
        limits: Limits { cpu_millis: CPU_MILLIS, memory: MEMORY, disk: with_disk.then_some(DISK), pids: PIDS },
        network: NetworkPolicy { deny_internet: true, ..NetworkPolicy::default() },
        env: Default::default(),
        access_token: None,
        labels: Default::default(),
        mounts: Vec::new(),
        features: Default::default(),
        snapshot: None,
    })
}

/// `tail` keeps a line until it ends, and this one is twice the limit.
async fn try_memory(guest: &Guest, cgroup: &SandboxCgroup) -> anyhow::Result<Trial> {
    let output = shell(guest, &format!("head -c {} /dev/zero | tail >/dev/null", 2 * MEMORY.0)).await?;
    Ok(Trial { succeeded: output.ended.is_success(), stopped: Some(cgroup.out_of_memory_kills()? > 0) })
}

/// Other programs slow a loop down as well, so the kernel is asked whether it was the quota.
async fn try_cpu(guest: &Guest, cgroup: &SandboxCgroup) -> anyhow::Result<Trial> {
    shell(guest, "timeout 0.5 sh -c 'while :; do :; done'").await?;
    let throttled = cgroup.throttled_periods()?;
    Ok(Trial { succeeded: true, stopped: Some(throttled > 0) })
}

async fn try_disk(guest: &Guest) -> anyhow::Result<Trial> {
    let output = shell(guest, &format!("head -c {} /dev/zero > ~/full", 2 * DISK.0)).await?;
    Ok(Trial { succeeded: output.ended.is_success(), stopped: None })
}

async fn try_pids(guest: &Guest) -> anyhow::Result<Trial> {
    let start = format!("exec sh -c 'for i in $(seq {}); do sleep 1 & done' 2>/dev/null", 2 * PIDS);
    let output = shell(guest, &start).await?;
    Ok(Trial { succeeded: output.ended.is_success(), stopped: None })
}

async fn shell(guest: &Guest, line: &str) -> anyhow::Result<Output> {
    guest.run(StartProcess::shell(line)).await.with_context(|| format!("could not run {line:?} in a sandbox"))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_limit_that_lets_everything_through_is_a_failure() {
        let given = Trial { succeeded: true, stopped: None };
        assert_eq!(told("disk limit", "32M on disk", given).verdict, Verdict::Fail);
        // The program failed, but not because of the limit.
        let failed_otherwise = Trial { succeeded: false, stopped: Some(false) };
        assert_eq!(told("memory limit", "128M of memory", failed_otherwise).verdict, Verdict::Fail);
        assert!(Trial { succeeded: false, stopped: None }.bites());
        assert!(Trial { succeeded: true, stopped: Some(true) }.bites());
    }
}
