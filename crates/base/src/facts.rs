//! Determines what the host offers to sandboxes from its files, without running any of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::host::Host;
use super::manifest::{BaseFacts, Pip, Sudo};
use super::usr_scan::UsrScan;

/// Where pip comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PipSource {
    None,
    Host,
    /// The path of a wheel, relative to the host's root.
    Wheel(PathBuf),
}

/// Collects the facts.
pub(super) fn collect_facts(host: &Host, scan: &UsrScan, pip: &PipSource, withheld_packages: Vec<String>) -> BaseFacts {
    let packages = Packages::read(host);
    let has = |program: &str| host.resolve(&Path::new("usr/bin").join(program)).is_some();
    let version = |program: &str, package: &str| has(program).then(|| packages.version(package));
    let mut facts = BaseFacts {
        system: system_name(host),
        python: python_minor(host).map(|minor| python_version(&packages, &minor)),
        pip: match pip {
            PipSource::None => Pip::None,
            PipSource::Host => Pip::Host,
            PipSource::Wheel(_) => Pip::Wheel,
        },
        node: version("node", "nodejs"),
        npm: has("npm"),
        git: version("git", "git"),
        curl: version("curl", "curl"),
        sudo: Sudo::Applet,
        missing: Vec::new(),
        withheld_packages,
        set_id_programs: scan.set_id_programs,
        capability_programs: scan.capability_programs,
        mounts_below_usr: scan.mounts.clone(),
        foreign_owners: scan.foreign_owners,
    };
    facts.missing = missing(&facts, has("bash"));
    facts
}

/// The `3.x` of `/usr/bin/python3`, from the name of the program that it links to.
pub(super) fn python_minor(host: &Host) -> Option<String> {
    let (path, _) = host.resolve(Path::new("usr/bin/python3"))?;
    let minor = path.file_name()?.to_str()?.strip_prefix("python")?;
    let is_version = minor.starts_with("3.") && minor[2..].bytes().all(|byte| byte.is_ascii_digit());
    (is_version && minor.len() > 2).then(|| minor.to_owned())
}

pub(super) fn find_pip(host: &Host) -> PipSource {
    let Some(minor) = python_minor(host) else { return PipSource::None };
    let modules = [
        "usr/lib/python3/dist-packages/pip".to_owned(),
        format!("usr/lib/python{minor}/site-packages/pip"),
        format!("usr/lib64/python{minor}/site-packages/pip"),
    ];
    if modules.iter().any(|module| host.is_dir(Path::new(module))) {
        return PipSource::Host;
    }
    let wheels = ["usr/share/python-wheels".to_owned(), format!("usr/lib/python{minor}/ensurepip/_bundled")];
    wheels.iter().find_map(|directory| pip_wheel(host, Path::new(directory))).map_or(PipSource::None, PipSource::Wheel)
}

fn pip_wheel(host: &Host, directory: &Path) -> Option<PathBuf> {
    let is_pip = |name: &&std::ffi::OsString| {
        name.to_str().is_some_and(|name| name.starts_with("pip-") && name.ends_with(".whl") && !name.contains('\n'))
    };
    host.list(directory).iter().find(is_pip).map(|name| directory.join(name))
}

fn missing(facts: &BaseFacts, has_bash: bool) -> Vec<String> {
    let wanted = [
        ("bash", has_bash),
        ("python3", facts.python.is_some()),
        ("python3-pip", facts.pip != Pip::None),
        ("nodejs", facts.node.is_some()),
        ("npm", facts.npm),
        ("git", facts.git.is_some()),
        ("curl", facts.curl.is_some()),
    ];
    wanted.into_iter().filter(|(_, there)| !there).map(|(name, _)| name.to_owned()).collect()
}

fn system_name(host: &Host) -> String {
    let text = host.read_text("usr/lib/os-release").or_else(|| host.read_text("etc/os-release")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("unknown").trim_matches(['"', '\'']).to_owned()
}

fn python_version(packages: &Packages, minor: &str) -> String {
    match packages.version(&format!("python{minor}-minimal")) {
        version if version == UNKNOWN => minor.to_owned(),
        version => version,
    }
}

/// The version shown if no package tells it.
const UNKNOWN: &str = "unknown";

/// The versions of installed packages, from dpkg's database.
struct Packages(HashMap<String, String>);

impl Packages {
    fn read(host: &Host) -> Self {
        let status = host.read_public(Path::new("var/lib/dpkg/status"), 256 << 20).unwrap_or_default();
        Self(parse_status(&String::from_utf8_lossy(&status)))
    }

    fn version(&self, package: &str) -> String {
        self.0.get(package).map_or(UNKNOWN, |version| upstream(version)).to_owned()
    }
}

fn parse_status(status: &str) -> HashMap<String, String> {
    let field = |paragraph: &str, name: &str| {
        let value = paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.map(str::to_owned)
    };
    status
        .split("\n\n")
        .filter(|paragraph| paragraph.contains("\nStatus: install ok installed"))
        .filter_map(|paragraph| Some((field(paragraph, "Package")?, field(paragraph, "Version")?)))
        .collect()
}

/// The version of the program without the packaging: `2.39.5` for `1:2.39.5-0+deb12u2`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let version = version.rsplit_once('-').map_or(version, |(start, _)| start);
    version.split_once('+').map_or(version, |(start, _)| start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_program() {
        assert_eq!(upstream("1:2.39.5-0+deb12u2"), "2.39.5");
        assert_eq!(upstream("20.20.2-1nodesource1+repack1"), "20.20.2");
        assert_eq!(upstream("23.0.1+dfsg-1"), "23.0.1");
        assert_eq!(upstream("7"), "7");
        assert_eq!(upstream(""), "");
    }

    #[test]
    fn removed_packages_do_not_count() {
        let status = "Package: a\nStatus: install ok installed\nVersion: 1-1\n\nPackage: b\n\
                      Status: deinstall ok config-files\nVersion: 2-1\n\n";
        let packages = parse_status(status);
        assert_eq!(packages.get("a").map(String::as_str), Some("1-1"));
        assert!(!packages.contains_key("b"));
    }
}
