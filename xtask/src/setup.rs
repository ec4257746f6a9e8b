//! `cargo xtask setup`: installs the packages that the tests need and this machine lacks, with one call of apt.
//!
//! The table below is the only list. Tiers look up what is missing.

use std::path::Path;
use std::process::Command;

use crate::criu;
use crate::node;
use crate::program::{find_program, is_root, run};
use crate::tier::Tier;

/// A package, and the tiers that need it.
struct Need {
    has: Has,
    package: &'static str,
    tiers: &'static [Tier],
}

/// How to detect a package.
enum Has {
    Program(&'static str),
    /// Modules of the system's Python, which Debian packages separately.
    PythonModules(&'static str),
    /// A directory, if the programs are not in the path.
    Directory(&'static str),
    /// A file, if there are no programs.
    File(&'static str),
}

use Has::{Directory, File, Program, PythonModules};
use Tier::{Fake, Real, Sdk, Stress, Unit};

const ALL: &[Tier] = &[Unit, Fake, Real, Sdk, Stress];
const ON_HOSTS: &[Tier] = &[Real, Sdk, Stress];
const WITH_FAKES: &[Tier] = &[Fake, Real, Sdk, Stress];

const NEEDS: &[Need] = &[
    // The linker, and C in some crates.
    Need { has: Program("gcc"), package: "gcc", tiers: ALL },
    // libFuzzer.
    Need { has: Program("c++"), package: "g++", tiers: &[Stress] },
    Need { has: Program("python3"), package: "python3", tiers: WITH_FAKES },
    Need { has: PythonModules("venv, ensurepip"), package: "python3-venv", tiers: WITH_FAKES },
    Need { has: Program("redis-server"), package: "redis-server", tiers: &[Fake, Real, Sdk] },
    Need { has: Directory("/usr/lib/postgresql"), package: "postgresql", tiers: &[Fake, Real, Stress] },
    Need { has: Program("git"), package: "git", tiers: WITH_FAKES },
    Need { has: Program("curl"), package: "curl", tiers: ON_HOSTS },
    Need { has: Program("openssl"), package: "openssl", tiers: ON_HOSTS },
    Need { has: Program("ip"), package: "iproute2", tiers: ON_HOSTS },
    // `ps`, `pgrep` and `pkill` in sandboxes, which have the host's /usr. A minimal system lacks them.
    Need { has: Program("pgrep"), package: "procps", tiers: ON_HOSTS },
    Need { has: Program("nft"), package: "nftables", tiers: ON_HOSTS },
    Need { has: Program("mkfs.btrfs"), package: "btrfs-progs", tiers: ON_HOSTS },
    Need { has: Program("mkfs.ext4"), package: "e2fsprogs", tiers: ON_HOSTS },
    Need { has: Program("strace"), package: "strace", tiers: &[Real] },
    Need { has: Program("mmdebstrap"), package: "mmdebstrap", tiers: &[Real, Sdk] },
    // Without the keys, Ubuntu's mmdebstrap refuses Debian's archive.
    Need {
        has: File("/usr/share/keyrings/debian-archive-keyring.gpg"),
        package: "debian-archive-keyring",
        tiers: &[Real, Sdk],
    },
    Need { has: Program("s3fs"), package: "s3fs", tiers: &[Real] },
    Need { has: Program("docker-registry"), package: "docker-registry", tiers: &[Real] },
    Need { has: Program("skopeo"), package: "skopeo", tiers: &[Real] },
    Need { has: Program("umoci"), package: "umoci", tiers: &[Real] },
    Need { has: Program("node"), package: "nodejs", tiers: &[Real, Sdk] },
    Need { has: Program("npm"), package: "npm", tiers: &[Real, Sdk] },
    Need { has: Program("tmux"), package: "tmux", tiers: &[Sdk] },
    Need { has: Program("chromium"), package: "chromium", tiers: &[Sdk] },
    Need { has: Program("qemu-system-x86_64"), package: "qemu-system-x86", tiers: &[Sdk] },
    Need { has: Program("certutil"), package: "libnss3-tools", tiers: &[Sdk] },
];

/// Packages that a distribution, by its `ID` in os-release, does not have. On Ubuntu, apt takes another one that provides the
/// name `chromium`: it brings snapd, and no program unless snapd runs.
const UNPACKAGED: &[(&str, &str)] = &[("ubuntu", "chromium")];

/// Installs everything that is missing for all tiers and that apt has.
pub(crate) fn setup() -> Result<(), String> {
    let missing = Missing::for_tiers(&Tier::ALL);
    for package in &missing.unpackaged {
        eprintln!("{}; tests that need it are left out", without_package(package));
    }
    install_packages(&missing.packages)?;
    // Only the tests of memory snapshots need it, and its source may be out of reach.
    if let Err(reason) = criu::ensure() {
        eprintln!("{reason}; tests of memory snapshots can't run");
    }
    node::ensure()
}

/// Returns why a tier cannot run on this machine, and what helps. Empty if it can.
pub(crate) fn obstacles(tier: Tier) -> Vec<String> {
    let mut obstacles = Vec::new();
    if tier.needs_root() && !is_root() {
        obstacles.push("it needs root; run it with sudo".to_owned());
    }
    let missing = Missing::for_tiers(&[tier]);
    if !missing.packages.is_empty() {
        obstacles.push(format!("packages are missing: apt-get install {}", missing.packages.join(" ")));
    }
    obstacles.extend(missing.unpackaged.into_iter().map(without_package));
    if tier == Sdk {
        obstacles.extend(node::obstacle());
    }
    obstacles
}

fn without_package(name: &str) -> String {
    format!("`{name}` is missing and this distribution has no package of it; put a program of that name into the path")
}

/// Whether setup may change this machine.
pub(crate) fn can_install() -> bool {
    is_root() && find_program("apt-get").is_some()
}

/// What this machine lacks.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    /// Packages that apt can install.
    packages: Vec<&'static str>,
    /// Those that this distribution does not have.
    unpackaged: Vec<&'static str>,
}

impl Missing {
    fn for_tiers(tiers: &[Tier]) -> Self {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self::on(distribution(&release), missing(NEEDS, tiers, Has::is_there))
    }

    fn on(distribution: &str, names: Vec<&'static str>) -> Self {
        let (unpackaged, packages) = names.into_iter().partition(|name| UNPACKAGED.contains(&(distribution, *name)));
        Self { packages, unpackaged }
    }
}

fn distribution(release: &str) -> &str {
    release.lines().find_map(|line| line.strip_prefix("ID=")).map_or("", |id| id.trim_matches('"'))
}

fn missing(needs: &[Need], tiers: &[Tier], is_there: impl Fn(&Has) -> bool) -> Vec<&'static str> {
    let is_wanted = |need: &&Need| need.tiers.iter().any(|tier| tiers.contains(tier));
    needs.iter().filter(is_wanted).filter(|need| !is_there(&need.has)).map(|need| need.package).collect()
}

impl Has {
    fn is_there(&self) -> bool {
        match self {
            Self::Program(name) => find_program(name).is_some() || Path::new("/usr/sbin").join(name).is_file(),
            Self::PythonModules(names) => {
                let tried = Command::new("/usr/bin/python3").args(["-c", &format!("import {names}")]).output();
                tried.is_ok_and(|output| output.status.success())
            }
            Self::Directory(path) => Path::new(path).is_dir(),
            Self::File(path) => Path::new(path).is_file(),
        }
    }
}

fn install_packages(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        eprintln!("all packages for the tests are installed");
        return Ok(());
    }
    let command = format!("apt-get install {}", packages.join(" "));
    if !can_install() {
        return Err(format!("packages are missing, and only root can install them: {command}"));
    }
    eprintln!("{command}");
    run(apt_get().args(["update", "-qq"]))?;
    run(apt_get().args(["install", "-y", "-qq"]).args(packages))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_for_the_chosen_tiers_is_installed() {
        let there = |has: &Has| matches!(has, Program("gcc" | "python3"));
        assert!(missing(NEEDS, &[Unit], there).is_empty());
        assert_eq!(missing(NEEDS, &[Fake], there), ["python3-venv", "redis-server", "postgresql", "git"]);
        assert!(missing(NEEDS, &[Real], there).contains(&"btrfs-progs"));
        assert!(missing(NEEDS, &[Sdk], there).contains(&"procps"));
        assert!(!missing(NEEDS, &[Real], there).contains(&"chromium"));
        assert_eq!(missing(NEEDS, &Tier::ALL, |_| true), Vec::<&str>::new());
    }

    #[test]
    fn what_a_distribution_does_not_package_is_not_asked_of_apt() {
        let names = || vec!["git", "chromium"];
        let on_ubuntu = Missing { packages: vec!["git"], unpackaged: vec!["chromium"] };
        assert_eq!(Missing::on(distribution("NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n"), names()), on_ubuntu);
        let on_debian = Missing { packages: names(), unpackaged: vec![] };
        assert_eq!(Missing::on(distribution("ID=debian\n"), names()), on_debian);
        assert!(UNPACKAGED.iter().all(|(_, name)| NEEDS.iter().any(|need| need.package == *name)));
    }

    #[test]
    fn no_package_is_listed_twice() {
        let mut packages: Vec<&str> = NEEDS.iter().map(|need| need.package).collect();
        packages.sort_unstable();
        packages.dedup();
        assert_eq!(packages.len(), NEEDS.len());
    }
}
