//! Chooses the packages of the host that the package database in the base lists as installed.
//!
//! The base has the host's `/usr`, but only a little of its `/etc` and `/var`. Programs work without the rest. Services
//! don't: they lack their settings, their data directory and their start script. If the database listed a service as
//! installed, `apt-get install` would do nothing. So the database leaves out services and the packages that depend on
//! them. Users who need one install it, which creates the missing files. Its files below `/usr` stay.
//!
//! The database also leaves out settings files of other packages if the base doesn't have them. Otherwise, dpkg would
//! assume that the user deleted them and ask what to do at the next upgrade.
//!
//! The database keeps every package that libraries or the package manager need. Without it, they would all have to go:
//! leaving out `dbus` would leave out GTK and Java.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::error::BaseError;
use super::host::Host;
use super::layer::{Layer, Meta};

const STATUS: &str = "var/lib/dpkg/status";
/// The same before the last change, which dpkg keeps.
const OLD_STATUS: &str = "var/lib/dpkg/status-old";
const INFO: &str = "var/lib/dpkg/info";
const AUTOMATIC: &str = "var/lib/apt/extended_states";
/// Which settings files packages have made, with a hash or the package's name before the path. A file that is named here
/// and is not there counts as deleted by the user, and is not made again.
const MADE_SETTINGS: &[&str] = &["var/lib/ucf/hashfile", "var/lib/ucf/registry"];
const STATUS_LIMIT: u64 = 256 << 20;

/// Where packages have parts that may be missing inside.
const OUTSIDE_USR: &[&str] = &["etc/", "opt/", "srv/", "var/"];
/// Regular work on the host, which nobody misses inside.
const HOUSEKEEPING: &[&str] = &["etc/cron.", "etc/logrotate.d"];
/// What is needed to install packages, besides those that dpkg itself calls essential.
const INSTALLERS: &[&str] = &["adduser", "apt", "ca-certificates", "debconf", "dpkg", "init-system-helpers"];

/// Takes packages out of the database that are not whole inside, when everything else is in the layer. Returns their names.
pub(super) fn withhold_packages(host: &Host, layer: &Layer) -> Result<Vec<String>, BaseError> {
    let Some(status) = host.read_public(Path::new(STATUS), STATUS_LIMIT) else { return Ok(Vec::new()) };
    let status = String::from_utf8_lossy(&status);
    let packages = Packages::parse(&status);
    let withheld = packages.withheld(|package| Parts::look(host, layer, package));
    let is_inside = |path: &str| layer.stat(Path::new(path.trim_start_matches('/'))).is_some();
    let kept = without(&packages.paragraphs, &withheld, is_inside);
    if packages.paragraphs != kept {
        write_status(layer, &kept)?;
    }
    if !withheld.is_empty() {
        forget_packages(host, layer, &packages, &withheld)?;
    }
    keep_made_settings(host, layer)?;
    Ok(withheld.into_iter().map(str::to_owned).collect())
}

/// What the database says about a package.
#[derive(Debug)]
struct Package<'a> {
    name: &'a str,
    architecture: &'a str,
    /// The source package that it was built from.
    source: &'a str,
    is_library: bool,
    is_essential: bool,
    /// Each needs one of several names.
    depends: Vec<Vec<&'a str>>,
    recommends: Vec<Vec<&'a str>>,
    provides: Vec<&'a str>,
}

impl<'a> Package<'a> {
    /// None for one that is not installed.
    fn parse(paragraph: &'a str) -> Option<Self> {
        let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        if field("Status")? != "install ok installed" {
            return None;
        }
        let name = field("Package")?;
        let is_yes = |name: &str| field(name) == Some("yes");
        let relations = |name: &str| field(name).map(relations).unwrap_or_default();
        Some(Self {
            name,
            architecture: field("Architecture").unwrap_or_default(),
            // A version may follow.
            source: field("Source").and_then(|source| source.split(' ').next()).unwrap_or(name),
            is_library: field("Section").is_some_and(|section| section.rsplit('/').next() == Some("libs")),
            is_essential: is_yes("Essential") || is_yes("Protected") || field("Priority") == Some("required"),
            depends: [relations("Pre-Depends"), relations("Depends")].concat(),
            recommends: relations("Recommends"),
            provides: relations("Provides").concat(),
        })
    }

    fn needs(&self, needs: Needs) -> impl Iterator<Item = &Vec<&'a str>> {
        let recommends = self.recommends.iter().filter(move |_| needs == Needs::AlsoRecommended);
        self.depends.iter().chain(recommends)
    }
}

/// How far one package needs another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Required,
    AlsoRecommended,
}

/// `a (>= 1) | b:any, c` as names. Versions do not matter: on the host they were right.
fn relations(text: &str) -> Vec<Vec<&str>> {
    text.split(',').map(alternatives).filter(|group| !group.is_empty()).collect()
}

fn alternatives(group: &str) -> Vec<&str> {
    group.split('|').map(bare_name).filter(|name| !name.is_empty()).collect()
}

fn bare_name(relation: &str) -> &str {
    relation.trim().split([' ', ':', '(']).next().unwrap_or_default()
}

/// What of a package is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    has_service: bool,
    is_whole: bool,
}

impl Parts {
    fn look(host: &Host, layer: &Layer, package: &Package<'_>) -> Self {
        let Package { name, architecture, .. } = package;
        let names = [format!("{INFO}/{name}.list"), format!("{INFO}/{name}:{architecture}.list")];
        let list = names.iter().find_map(|name| host.read_text(name)).unwrap_or_default();
        let paths = || list.lines().map(|line| line.trim_start_matches('/'));
        let is_missing = |path: &str| {
            let path = Path::new(path);
            host.exists(path) && layer.stat(path).is_none()
        };
        Self {
            has_service: paths().any(is_service),
            is_whole: !paths().filter(|path| belongs_inside(path)).any(is_missing),
        }
    }
}

fn is_service(path: &str) -> bool {
    let unit = path.strip_prefix("usr/").unwrap_or(path).strip_prefix("lib/systemd/system/");
    unit.is_some_and(|unit| unit.ends_with(".service") && !unit.contains('/')) || path.starts_with("etc/init.d/")
}

fn belongs_inside(path: &str) -> bool {
    let begins = |list: &[&str]| list.iter().any(|start| path.starts_with(start));
    begins(OUTSIDE_USR) && !begins(HOUSEKEEPING)
}

/// The installed packages of a host.
#[derive(Debug)]
struct Packages<'a> {
    /// The database as it is, paragraph by paragraph.
    paragraphs: Vec<&'a str>,
    installed: Vec<Package<'a>>,
    /// Who can stand for a name.
    providers: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

type Names<'a> = BTreeSet<&'a str>;

impl<'a> Packages<'a> {
    fn parse(status: &'a str) -> Self {
        let paragraphs: Vec<&str> = status.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()).collect();
        let installed: Vec<Package<'_>> = paragraphs.iter().filter_map(|paragraph| Package::parse(paragraph)).collect();
        let mut providers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in &installed {
            for name in package.provides.iter().chain([&package.name]) {
                providers.entry(name).or_default().insert(package.name);
            }
        }
        Self { paragraphs, installed, providers }
    }

    /// The names of packages that the database inside leaves out.
    fn withheld(&self, look: impl Fn(&Package<'a>) -> Parts) -> Names<'a> {
        let parts: Vec<(&Package<'a>, Parts)> = self.installed.iter().map(|package| (package, look(package))).collect();
        let broken: Names<'a> =
            parts.iter().filter(|(_, parts)| !parts.is_whole).map(|(package, _)| package.name).collect();
        let services = parts.iter().filter(|(_, parts)| parts.has_service && !parts.is_whole);
        let needed = self.needed();
        let mut withheld = Names::new();
        for (service, _) in services {
            // Its settings may be in a package beside it, and its directories may be made by the scripts of one.
            let is_part = |other: &&Package<'a>| {
                let is_needed = service.depends.iter().flatten().any(|name| *name == other.name);
                other.source == service.source && !other.is_library && (is_needed || broken.contains(other.name))
            };
            let parts = self.installed.iter().filter(is_part).map(|other| other.name);
            let beside = parts.chain([service.name]).collect();
            for names in [beside, Names::from([service.name])] {
                let with_dependents = self.with_dependents(&withheld | &names);
                if with_dependents.is_disjoint(&needed) {
                    withheld = with_dependents;
                    break;
                }
            }
        }
        withheld
    }

    /// What has to stay: libraries, and what installs packages.
    fn needed(&self) -> Names<'a> {
        let is_essential = |package: &&Package<'a>| package.is_essential || INSTALLERS.contains(&package.name);
        let essential = self.installed.iter().filter(is_essential).map(|package| package.name).collect();
        let libraries = self.installed.iter().filter(|package| package.is_library).map(|package| package.name);
        let mut needed = self.with_dependencies(essential, Needs::Required);
        needed.extend(libraries);
        needed
    }

    /// These and all that cannot be installed without them.
    fn with_dependents(&self, mut names: Names<'a>) -> Names<'a> {
        loop {
            let is_met = |group: &Vec<&str>, names: &Names<'a>| {
                let mut able = group.iter().filter_map(|name| self.providers.get(name)).flatten().peekable();
                // What nobody provides was not met on the host either.
                able.peek().is_none() || able.any(|name| !names.contains(name))
            };
            let added: Vec<&str> = self
                .installed
                .iter()
                .filter(|package| !names.contains(package.name))
                .filter(|package| package.depends.iter().any(|group| !is_met(group, &names)))
                .map(|package| package.name)
                .collect();
            if added.is_empty() {
                return names;
            }
            names.extend(added);
        }
    }

    /// These and all that they need.
    fn with_dependencies(&self, mut names: Names<'a>, needs: Needs) -> Names<'a> {
        loop {
            let before = names.len();
            let asking: Vec<&Package<'a>> =
                self.installed.iter().filter(|package| names.contains(package.name)).collect();
            let wanted = asking.into_iter().flat_map(|package| package.needs(needs)).flatten();
            names.extend(wanted.filter_map(|name| self.providers.get(name)).flatten());
            if names.len() == before {
                return names;
            }
        }
    }
}

fn write_status(layer: &Layer, paragraphs: &[String]) -> Result<(), BaseError> {
    [STATUS, OLD_STATUS].iter().try_for_each(|path| layer.file(path, database(paragraphs), Meta::root(0o644)))
}

fn forget_packages(host: &Host, layer: &Layer, packages: &Packages<'_>, withheld: &Names<'_>) -> Result<(), BaseError> {
    for name in host.list(Path::new(INFO)) {
        let package = name.to_str().and_then(|name| name.rsplit_once('.')).map(|(package, _)| bare_name(package));
        let path = Path::new(INFO).join(&name);
        if package.is_some_and(|package| withheld.contains(package)) && !layer.has_directory(&path) {
            layer.remove(&path)?;
        }
    }
    // What was installed for the sake of a package that is left out would be offered for removal with every call of apt.
    let Some(automatic) = host.read_text(AUTOMATIC) else { return Ok(()) };
    let asked_for = packages.with_dependencies(withheld.clone(), Needs::AlsoRecommended);
    let paragraphs: Vec<&str> = automatic.split("\n\n").collect();
    layer.file(AUTOMATIC, database(&without(&paragraphs, &asked_for, |_| true)), Meta::root(0o644))
}

fn database(paragraphs: &[String]) -> String {
    paragraphs.iter().map(|paragraph| format!("{}\n\n", paragraph.trim_matches('\n'))).collect()
}

/// The paragraphs of other packages than these, with the settings files that are there.
fn without(paragraphs: &[&str], names: &Names<'_>, is_inside: impl Fn(&str) -> bool) -> Vec<String> {
    let stays = |paragraph: &&&str| {
        let name = paragraph.lines().find_map(|line| line.strip_prefix("Package: "));
        name.is_some_and(|name| !names.contains(name))
    };
    paragraphs.iter().filter(stays).map(|paragraph| keep_conffiles(paragraph, &is_inside)).collect()
}

/// Takes settings files out of a paragraph that are not in the layer. To dpkg they were deleted by the user: it asks whether to
/// make them again, or does not make them at all.
fn keep_conffiles(paragraph: &str, is_inside: impl Fn(&str) -> bool) -> String {
    let Some(start) = paragraph.find("\nConffiles:\n") else { return paragraph.to_owned() };
    let (before, rest) = paragraph.split_at(start + 1);
    let (heading, rest) = rest.split_at(rest.find('\n').map_or(rest.len(), |end| end + 1));
    let listed: Vec<&str> = rest.split_inclusive('\n').take_while(|line| line.starts_with(' ')).collect();
    let after = &rest[listed.iter().map(|line| line.len()).sum()..];
    let is_kept = |line: &&&str| line.split_whitespace().next().is_some_and(&is_inside);
    let kept: String = listed.iter().filter(is_kept).copied().collect();
    if kept.is_empty() { format!("{before}{after}") } else { format!("{before}{heading}{kept}{after}") }
}

/// Forgets settings files that are not in the layer.
fn keep_made_settings(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    for path in MADE_SETTINGS {
        let Some(text) = host.read_text(path) else { continue };
        let is_inside = |line: &&str| {
            let made = line.split_whitespace().nth(1).map(|made| made.trim_start_matches('/'));
            made.is_some_and(|made| layer.stat(Path::new(made)).is_some())
        };
        let kept: String = text.lines().filter(is_inside).map(|line| format!("{line}\n")).collect();
        layer.file(path, kept, Meta::root(0o644))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Parts = Parts { has_service: false, is_whole: true };
    const SETTINGS: Parts = Parts { has_service: false, is_whole: false };
    const SERVICE: Parts = Parts { has_service: true, is_whole: false };

    fn withheld(status: &str, parts: &[(&str, Parts)]) -> Vec<String> {
        let packages = Packages::parse(status);
        let look = |package: &Package<'_>| {
            parts.iter().find(|(name, _)| *name == package.name).map_or(WHOLE, |(_, parts)| *parts)
        };
        packages.withheld(look).into_iter().map(str::to_owned).collect()
    }

    fn package(name: &str, rest: &str) -> String {
        format!("Package: {name}\nStatus: install ok installed\nVersion: 1\n{rest}\n\n")
    }

    #[test]
    fn a_service_goes_with_what_depends_on_it_and_its_own_settings() {
        let status = [
            package("server", "Source: db (1-2)\nDepends: libdb1 (>= 1), common, tools (= 1)"),
            package("tools", "Source: db"),
            package("common", "Source: db"),
            package("client", "Source: db"),
            package("meta", "Depends: server (= 1) | other-server"),
            package("either", "Depends: server | mail"),
            package("mail", "Provides: smtp"),
            package("libdb1", "Source: db\nSection: libs"),
        ]
        .concat();
        let own = ["common", "meta", "server", "tools"];
        assert_eq!(withheld(&status, &[("server", SERVICE), ("common", SETTINGS)]), own);
        let both = ["common", "either", "mail", "meta", "server", "tools"];
        assert_eq!(withheld(&status, &[("server", SERVICE), ("mail", SERVICE)]), both);
        let with_client = ["client", "common", "meta", "server", "tools"];
        assert_eq!(withheld(&status, &[("server", SERVICE), ("client", SETTINGS)]), with_client);
        assert!(withheld(&status, &[("client", SETTINGS)]).is_empty(), "no service needs them");
    }

    #[test]
    fn what_libraries_and_installers_need_stays() {
        let status = [
            package("bus", ""),
            package("libgui", "Section: libs\nDepends: bus"),
            package("cron", "Priority: important"),
            package("apt", "Depends: gpgv | gpg"),
            package("gpg", ""),
            package("login", "Essential: yes\nPre-Depends: pam"),
            package("pam", ""),
        ]
        .concat();
        let all = ["bus", "cron", "apt", "gpg", "login", "pam"].map(|name| (name, SERVICE));
        assert_eq!(withheld(&status, &all), ["cron"]);
    }

    #[test]
    fn settings_files_that_are_not_there_are_not_in_the_database() {
        let text = "Package: a\nConffiles:\n /etc/a 01\n /etc/b 02 obsolete\nDescription: b\n c";
        let keep = |kept: &'static [&str]| keep_conffiles(text, |path| kept.contains(&path));
        assert_eq!(keep(&["/etc/a", "/etc/b"]), text);
        assert_eq!(keep(&["/etc/b"]), "Package: a\nConffiles:\n /etc/b 02 obsolete\nDescription: b\n c");
        assert_eq!(keep(&[]), "Package: a\nDescription: b\n c");
        let last = "Package: a\nConffiles:\n /etc/a 01";
        assert_eq!(keep_conffiles(last, |_| false), "Package: a\n");
        assert_eq!(keep_conffiles("Package: a", |_| false), "Package: a");
    }

    #[test]
    fn relations_are_names() {
        let text = "libc6 (>= 2.34), python3:any, a (= 1) | b, ${broken}";
        assert_eq!(relations(text), [vec!["libc6"], vec!["python3"], vec!["a", "b"], vec!["${broken}"]]);
        assert!(relations("").is_empty());
    }

    #[test]
    fn units_and_start_scripts_are_services() {
        for path in ["lib/systemd/system/a.service", "usr/lib/systemd/system/a@.service", "etc/init.d/a"] {
            assert!(is_service(path), "{path}");
        }
        for path in ["usr/lib/systemd/system/a.service.d/b.conf", "usr/lib/systemd/system/a.timer", "etc/init.d"] {
            assert!(!is_service(path), "{path}");
        }
        assert!(belongs_inside("etc/redis/redis.conf") && belongs_inside("var/lib/redis"));
        assert!(!belongs_inside("etc/cron.daily/apt") && !belongs_inside("usr/bin/redis"));
    }
}
