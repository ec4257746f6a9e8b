//! `isopod doctor`: what this machine can and cannot do, and how to change it.

mod limits;
mod memory;

use std::path::Path;
use std::process::ExitCode;

use isopod_disk::{Disk, DiskOptions, NoLimit};
use isopod_isolation::cgroup::Layout;
use isopod_isolation::launch::{exposes_privileged_processes, has_time_namespaces};
use isopod_network::{NetworkConfig, preflight};
use isopod_node::base::{BaseFacts, BaseOptions, ensure_base};
use isopod_node::{PackageDifference, StateRoot, guest_program_bytes, package_differences};
use serde::Serialize;

use crate::args::JsonArgs;
use crate::host_packages::{list, missing_packages_beside};
use crate::say::print_json_pretty;

/// The oldest kernel that can id-map the layers of an overlay.
const LEAST_KERNEL: (u32, u32) = (5, 19);

const SETUP: &str = "`isopod setup` installs what is missing";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, what, detail: detail.into(), hint: None }
    }

    fn warn(what: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, what, detail: detail.into(), hint: Some(hint.into()) }
    }

    fn fail(what: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, what, detail: detail.into(), hint: Some(hint.into()) }
    }
}

pub(super) async fn run(state_dir: &Path, args: &JsonArgs) -> anyhow::Result<ExitCode> {
    let findings = examine(state_dir).await;
    if args.json {
        print_json_pretty(&findings);
    } else {
        findings.iter().for_each(print);
    }
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(finding: &Finding) {
    let mark = match finding.verdict {
        Verdict::Ok => "ok  ",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    say!("{mark}  {:<12} {}", finding.what, finding.detail);
    if let Some(hint) = &finding.hint {
        say!("      {:<12} hint: {hint}", "");
    }
}

async fn examine(state_dir: &Path) -> Vec<Finding> {
    let mut findings = vec![platform(), kernel(), user(), cgroups()];
    findings.extend(dumpable());
    if findings.iter().any(|finding| finding.verdict == Verdict::Fail) {
        return findings;
    }
    findings.extend(network_findings());
    findings.extend(inotify());
    findings.push(boot_clock(has_time_namespaces()));
    findings.push(memory::program());
    match StateRoot::open(state_dir) {
        Ok(state) => {
            let disk = disk(&state);
            let with_disk = disk.verdict == Verdict::Ok;
            findings.push(disk);
            findings.push(packages(with_disk));
            findings.extend(base(&state));
            if findings.iter().all(|finding| finding.verdict != Verdict::Fail) {
                findings.extend(limits::measure(state_dir, with_disk).await);
            }
        }
        Err(error) => {
            findings.push(Finding::fail("state", error.to_string(), "give another directory with --state-dir"))
        }
    }
    findings
}

fn platform() -> Finding {
    match std::env::consts::ARCH {
        "x86_64" => Finding::ok("platform", "x86_64 Linux"),
        other => Finding::fail("platform", format!("{other} is not supported yet"), "use an x86_64 machine"),
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    match numbers.as_slice() {
        [major, minor, ..] if (*major, *minor) >= LEAST_KERNEL => Finding::ok("kernel", release),
        _ => Finding::fail("kernel", format!("{release} is too old"), "Isopod needs Linux 5.19 or later"),
    }
}

fn user() -> Finding {
    if !rustix::process::geteuid().is_root() {
        return Finding::fail("user", "not root", "run isopod with sudo");
    }
    match std::fs::read_to_string("/proc/self/uid_map") {
        Ok(map) if map.split_whitespace().collect::<Vec<_>>() == ["0", "0", "4294967295"] => {
            Finding::ok("user", "root")
        }
        _ => Finding::fail(
            "user",
            "root inside a user namespace (a rootless or unprivileged container)",
            "run isopod on the host itself or in a privileged container",
        ),
    }
}

fn dumpable() -> Option<Finding> {
    exposes_privileged_processes().then(|| {
        Finding::fail(
            "dumpable",
            "fs.suid_dumpable is 1: processes that make sandboxes are open to the code in them",
            "sysctl fs.suid_dumpable=0",
        )
    })
}

fn cgroups() -> Finding {
    match Layout::detect() {
        Err(error) => Finding::fail("cgroups", error.to_string(), "mount cgroup2 on /sys/fs/cgroup"),
        Ok(layout) if layout.missing().is_empty() => {
            let kind = match (layout.v2_root(), layout.hierarchies().len()) {
                (Some(_), 1) => "v2",
                (Some(_), _) => "v1 and v2 (hybrid)",
                (None, _) => "v1",
            };
            Finding::ok("cgroups", format!("{kind}; memory, cpu, pids and freezer are there"))
        }
        Ok(layout) => Finding::fail(
            "cgroups",
            format!("no controller for {}", layout.missing().join(", ")),
            "enable the controllers on the kernel's command line",
        ),
    }
}

fn network_findings() -> Vec<Finding> {
    // The tag only has to be one that nobody uses: nothing is made.
    let config = "0000".parse().map(NetworkConfig::new);
    let found = config.map(|config| preflight(&config)).unwrap_or_default();
    if found.is_empty() {
        return vec![Finding::ok("network", "veth, nftables and a resolver are there")];
    }
    let told = |finding: &isopod_network::Finding| match finding.is_fatal() {
        true => Finding::fail("network", finding.to_string(), finding.hint()),
        false => Finding::warn("network", finding.to_string(), finding.hint()),
    };
    found.iter().map(told).collect()
}

/// Instances are counted against the owner of each sandbox's user namespace, so the limit is per sandbox.
fn inotify() -> Option<Finding> {
    let text = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").ok()?;
    let most: u32 = text.trim().parse().ok()?;
    let detail = format!("{most} instances for each sandbox");
    Some(match most {
        64.. => Finding::ok("inotify", detail),
        _ => Finding::warn("inotify", detail, "sysctl fs.inotify.max_user_instances=128"),
    })
}

fn boot_clock(has_time_namespaces: bool) -> Finding {
    if has_time_namespaces {
        return Finding::ok("boot clock", "uptime and process times count from a sandbox's own start");
    }
    Finding::warn(
        "boot clock",
        "this kernel gives out no time namespaces: sandboxes work, but `ps` shows wrong start times in them",
        "use a kernel with CONFIG_TIME_NS, and sysctl user.max_time_namespaces above 0",
    )
}

fn disk(state: &StateRoot) -> Finding {
    match Disk::open(state.path(), &DiskOptions::default()) {
        Err(error) => Finding::fail("disk", error.to_string(), "give another directory with --state-dir"),
        Ok(disk) => {
            let kind = disk.kind();
            let finding = match disk.no_limit() {
                None => Finding::ok("disk", format!("what a sandbox writes to {kind} can be limited")),
                Some(reason) => {
                    let detail = format!("sandboxes write to {kind}, so --disk cannot be enforced: {reason}");
                    let hint = matches!(reason, NoLimit::NoMkfs | NoLimit::MkfsFailed(_)).then(|| SETUP.to_owned());
                    Finding { verdict: Verdict::Warn, what: "disk", detail, hint }
                }
            };
            // Nothing is left mounted for having looked.
            let _ = disk.close_if_unused();
            finding
        }
    }
}

/// Those that Isopod can do without.
fn packages(has_disk_limits: bool) -> Finding {
    match missing_packages_beside(has_disk_limits) {
        missing if missing.is_empty() => Finding::ok("packages", "all optional packages are there"),
        missing => Finding::warn("packages", format!("missing: {}", list(&missing)), SETUP),
    }
}

fn base(state: &StateRoot) -> Vec<Finding> {
    match ensure_base(&state.layers(), guest_program_bytes(), &BaseOptions::default()) {
        Ok(base) => {
            let packages = package_differences(state, &base.facts).map(|found| interpreter(&found));
            facts(&base.facts).into_iter().chain(withheld(&base.facts)).chain(packages).collect()
        }
        Err(error) => vec![Finding::fail("base", error.to_string(), "try --frozen, which copies /usr")],
    }
}

fn facts(facts: &BaseFacts) -> Vec<Finding> {
    let mut findings = vec![Finding::ok("base", format!("made of {}", facts.system))];
    for (what, version) in
        [("python", &facts.python), ("node", &facts.node), ("git", &facts.git), ("curl", &facts.curl)]
    {
        findings.push(match version {
            Some(version) => Finding::ok(what, version.to_string()),
            None => Finding::warn(
                what,
                "not on this host, so not in `base`",
                format!("install {what} on the host, or in a sandbox"),
            ),
        });
    }
    findings
}

/// Packages of the host that have to be installed in a sandbox before they work there.
fn withheld(facts: &BaseFacts) -> Option<Finding> {
    let names = &facts.withheld_packages;
    (!names.is_empty()).then(|| {
        let detail = format!("not installed inside, because `base` has no settings of services: {}", names.join(", "));
        Finding::ok("packages", detail)
    })
}

fn interpreter(differences: &[PackageDifference]) -> Finding {
    if differences.is_empty() {
        // Others have a range of versions.
        let detail = "the template has E2B's versions of the Python packages that are listed with exact versions";
        return Finding::ok("interpreter", detail);
    }
    let list = differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Finding::warn(
        "interpreter",
        format!("Python packages of the template differ from E2B's: {list}"),
        "this Python may have no others, or recipes/code-interpreter-v1/packages.txt in the state directory asks for them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_differ_from_e2bs_are_named() {
        assert_eq!(interpreter(&[]).verdict, Verdict::Ok);
        let numpy = PackageDifference { name: "numpy".to_owned(), wanted: "2.3.5".to_owned(), found: None };
        let told = interpreter(&[numpy]);
        assert_eq!(told.verdict, Verdict::Warn);
        assert!(told.detail.contains("no numpy (E2B: 2.3.5)"), "{}", told.detail);
    }

    #[test]
    fn packages_that_are_not_whole_inside_are_named() {
        assert!(withheld(&BaseFacts::default()).is_none());
        let facts = BaseFacts { withheld_packages: vec!["redis-server".to_owned()], ..BaseFacts::default() };
        assert!(withheld(&facts).is_some_and(|told| told.detail.ends_with(": redis-server")));
    }

    #[test]
    fn a_kernel_without_time_namespaces_is_told() {
        assert_eq!(boot_clock(true).verdict, Verdict::Ok);
        let told = boot_clock(false);
        assert_eq!(told.verdict, Verdict::Warn);
        assert!(told.hint.is_some_and(|hint| hint.contains("CONFIG_TIME_NS")));
    }
}
