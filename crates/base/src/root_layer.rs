//! The layer of `/`: everything outside `/usr`. Directories and accounts are generated. Configuration and package state
//! are copied from the host by the allow-list. No link in it can redirect a later mount: `/dev`, `/proc`, `/sys`,
//! `/tmp` and `/run` are directories, and `/etc/resolv.conf` is a file.

use std::path::Path;

use super::accounts::{Accounts, USER_ID};
use super::allowlist::{APT_HOOKS, ETC, VAR};
use super::copy::{Copier, SecretScan};
use super::error::BaseError;
use super::host::Host;
use super::layer::{Layer, Meta};
use super::manifest::{SkipReason, Skipped};
use super::merged_root::MergedRoot;
use super::settings;

/// The directories that are links on a host with a merged `/usr`.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The host name of sandboxes until they get their own.
const HOST_NAME: &str = "isopod";

/// Fills the layer, except for the configuration that [`write_settings`] adds when all layers exist.
pub(super) fn build_root(host: &Host, layer: &Layer) -> Result<Vec<Skipped>, BaseError> {
    let read = |path| host.read_text(path).unwrap_or_default();
    let accounts = Accounts::new(&read("etc/passwd"), &read("etc/group"));
    make_merged_links(host, layer)?;
    make_directories(layer)?;
    let mut copier = Copier::new(host, layer);
    copier.copy_list(ETC, SecretScan::On)?;
    copier.copy_list(VAR, SecretScan::Off)?;
    for path in ["etc/ssl/openssl.cnf", "etc/pki/tls/openssl.cnf"] {
        copy_reduced(host, layer, &mut copier, Path::new(path), settings::openssl_cnf)?;
    }
    copy_apt(host, layer, &mut copier)?;
    make_package_state(layer, &accounts)?;
    write_accounts(layer, &accounts)?;
    write_etc(layer)?;
    write_profile(host, layer)?;
    write_homes(host, layer)?;
    Ok(copier.into_skipped())
}

/// Adds the configuration of package managers, reduced to what exists in the sandbox.
pub(super) fn write_settings(host: &Host, layer: &Layer, merged: &MergedRoot<'_>) -> Result<(), BaseError> {
    let exists = |path: &str| merged.exists(path);
    let sources: [(&str, Reduce); 3] =
        [("etc/pip.conf", settings::pip_conf), ("etc/npmrc", settings::npmrc), ("etc/gitconfig", settings::git_config)];
    for (path, reduce) in sources {
        let kept = host.read_text(path).map(|text| reduce(&text, &exists)).unwrap_or_default();
        if !kept.is_empty() {
            layer.file(path, kept, Meta::root(0o644))?;
        }
    }
    Ok(())
}

/// Reduces a configuration file.
pub(super) type Reduce = fn(&str, settings::ExistsInSandbox<'_>) -> String;

fn make_merged_links(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    for name in MERGED {
        let path = Path::new(name);
        if !host.exists(path) {
            continue;
        }
        let target = host.read_link(path).and_then(|target| target.into_string().ok());
        let target = target.as_deref().map(|target| target.trim_start_matches('/'));
        match target.filter(|target| target.starts_with("usr/") && !target.contains("..")) {
            Some(target) => layer.symlink(name, target)?,
            None => return Err(BaseError::NotUsrMerged(Path::new("/").join(name))),
        }
    }
    Ok(())
}

/// Directories and their modes. All belong to root.
const DIRECTORIES: &[(&str, u32)] = &[
    ("boot", 0o755),
    ("dev", 0o755),
    ("dev/pts", 0o755),
    ("dev/shm", 0o1777),
    ("etc", 0o755),
    ("etc/opt", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/backups", 0o755),
    ("var/cache", 0o755),
    ("var/cache/debconf", 0o755),
    ("var/cache/ldconfig", 0o700),
    ("var/lib", 0o755),
    ("var/lib/misc", 0o755),
    ("var/lib/systemd", 0o755),
    ("var/lib/ucf", 0o755),
    ("var/lib/ucf/cache", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/log/apt", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];

fn make_directories(layer: &Layer) -> Result<(), BaseError> {
    for (path, mode) in DIRECTORIES {
        layer.dir(path, Meta::root(*mode))?;
    }
    layer.symlink("var/run", "/run")?;
    layer.symlink("var/lock", "/run/lock")?;
    layer.symlink("var/spool/mail", "../mail")
}

/// Copies apt's sources and configuration line by line, because any line may contain a password.
fn copy_apt(host: &Host, layer: &Layer, copier: &mut Copier<'_>) -> Result<(), BaseError> {
    for directory in ["etc/apt/apt.conf.d", "etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/trusted.gpg.d"]
    {
        layer.dir(directory, Meta::root(0o755))?;
    }
    copy_reduced(host, layer, copier, Path::new("etc/apt/sources.list"), settings::apt_sources_list)?;
    for (path, name) in children(host, "etc/apt/sources.list.d") {
        match name.rsplit_once('.').map(|(_, end)| end) {
            Some("list") => copy_reduced(host, layer, copier, Path::new(&path), settings::apt_sources_list)?,
            Some("sources") => copy_reduced(host, layer, copier, Path::new(&path), settings::apt_sources_stanzas)?,
            // apt ignores files with other extensions.
            _ => {}
        }
    }
    for (path, name) in children(host, "etc/apt/apt.conf.d") {
        let path = Path::new(&path);
        let usable = host.read_text(&path.to_string_lossy()).is_none_or(|text| settings::is_usable_apt_conf(&text));
        match (APT_HOOKS.contains(&name.as_str()), usable) {
            (true, _) => copier.skip(path, SkipReason::HostHook),
            (false, false) => copier.skip(path, SkipReason::LooksSecret),
            (false, true) => copier.copy(path, SecretScan::On)?,
        }
    }
    Ok(())
}

fn copy_reduced(
    host: &Host,
    layer: &Layer,
    copier: &mut Copier<'_>,
    path: &Path,
    reduce: fn(&str) -> String,
) -> Result<(), BaseError> {
    let Some(text) = path.to_str().and_then(|path| host.read_text(path)) else {
        // Not a regular file that every user may read: `copy` copies a link as a link and records the reason for
        // refusing anything else.
        return copier.copy(path, SecretScan::On);
    };
    let kept = reduce(&text);
    if kept.lines().count() < text.lines().filter(|line| !line.trim().is_empty()).count() {
        copier.skip(path, SkipReason::LooksSecret);
    }
    layer.file_at(path, kept.as_bytes(), Meta::root(0o644))
}

/// The entries of a directory as (path, name). Names that are not UTF-8 are skipped.
fn children(host: &Host, directory: &str) -> Vec<(String, String)> {
    let names = host.list(Path::new(directory)).into_iter().filter_map(|name| name.into_string().ok());
    names.map(|name| (format!("{directory}/{name}"), name)).collect()
}

/// Creates the directories and files that apt and dpkg expect. apt downloads as `_apt` if that user exists.
fn make_package_state(layer: &Layer, accounts: &Accounts) -> Result<(), BaseError> {
    let apt = accounts.uid("_apt").unwrap_or(0);
    for path in ["var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/lib/apt/mirrors/partial"] {
        layer.dir(path, Meta::owned(0o700, apt, 0))?;
    }
    layer.dir("var/lib/apt/periodic", Meta::root(0o755))?;
    layer.dir("var/mail", Meta::owned(0o2775, 0, accounts.gid("mail").unwrap_or(0)))?;
    if let Some(man) = accounts.uid("man") {
        layer.dir("var/cache/man", Meta::owned(0o755, man, accounts.gid("man").unwrap_or(0)))?;
    }
    let log_group = accounts.gid("adm").unwrap_or(0);
    layer.file("var/log/dpkg.log", "", Meta::root(0o644))?;
    layer.file("var/log/apt/history.log", "", Meta::root(0o644))?;
    layer.file("var/log/apt/term.log", "", Meta::owned(0o640, 0, log_group))
}

fn write_accounts(layer: &Layer, accounts: &Accounts) -> Result<(), BaseError> {
    let hidden = Meta::owned(0o640, 0, accounts.gid("shadow").unwrap_or(0));
    layer.file("etc/passwd", &accounts.passwd, Meta::root(0o644))?;
    layer.file("etc/group", &accounts.group, Meta::root(0o644))?;
    layer.file("etc/shadow", &accounts.shadow, hidden)?;
    layer.file("etc/gshadow", &accounts.gshadow, hidden)
}

/// `localhost` is IPv4 only. If IPv6 is off, servers that listen on the first address of that name would fail.
const HOSTS: &str = "127.0.0.1\tlocalhost isopod\n::1\tip6-localhost ip6-loopback\n";

/// Names come from files and DNS only. A sandbox does not run the daemons that other sources need.
const NSSWITCH: &str = "passwd:\tfiles\ngroup:\tfiles\nshadow:\tfiles\ngshadow:\tfiles\nhosts:\tfiles dns\n\
                        networks:\tfiles\nprotocols:\tfiles\nservices:\tfiles\nethers:\tfiles\nrpc:\tfiles\n";

/// A user's `pip install` puts programs into a directory that is not on the PATH of login shells.
const PROFILE: &str = "case \":$PATH:\" in\n*\":$HOME/.local/bin:\"*) ;;\n*) [ \"${EUID:-$(id -u)}\" -eq 0 ] || \
                       PATH=\"$HOME/.local/bin:$PATH\" ;;\nesac\nexport PATH\n";

fn write_etc(layer: &Layer) -> Result<(), BaseError> {
    let files: [(&str, &str); 8] = [
        ("etc/environment", ""),
        ("etc/fstab", ""),
        ("etc/hosts", HOSTS),
        ("etc/machine-id", ""),
        ("etc/nsswitch.conf", NSSWITCH),
        ("etc/profile.d/isopod.sh", PROFILE),
        // Written again for each sandbox. It is a regular file, so that nothing is written through a link of the host.
        ("etc/resolv.conf", ""),
        ("etc/networks", "default\t0.0.0.0\nloopback\t127.0.0.0\n"),
    ];
    for (path, contents) in files {
        layer.file(path, contents, Meta::root(0o644))?;
    }
    // For users who install the real sudo. Ours does not ask for passwords.
    layer.file("etc/sudoers.d/isopod", "user ALL=(ALL:ALL) NOPASSWD:ALL\n", Meta::root(0o440))?;
    layer.file("etc/hostname", format!("{HOST_NAME}\n"), Meta::root(0o644))?;
    layer.symlink("etc/mtab", "/proc/self/mounts")
}

/// Rewrites the host's profile so that it starts no processes. SDKs run every command in a login shell, and running
/// `id` takes longer than the rest of a short command. bash knows its uid; other shells still run `id`.
fn write_profile(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    let text = host.read_text("etc/profile").filter(|text| !super::secrets::looks_secret(text.as_bytes()));
    match text {
        Some(text) if text.contains(ASK_ID) => {
            layer.file("etc/profile", text.replace(ASK_ID, KNOWN_ID), Meta::root(0o644))
        }
        // Keep the copied file, or none.
        _ => Ok(()),
    }
}

const ASK_ID: &str = "\"$(id -u)\"";
const KNOWN_ID: &str = "\"${EUID:-$(id -u)}\"";

const BASHRC: &str = "case $- in\n*i*) ;;\n*) return ;;\nesac\nHISTCONTROL=ignoreboth\nshopt -s checkwinsize\n\
                      PS1='\\u@\\h:\\w\\$ '\n";
const USER_PROFILE: &str =
    "if [ -n \"$BASH_VERSION\" ] && [ -f \"$HOME/.bashrc\" ]; then\n    . \"$HOME/.bashrc\"\nfi\n";

fn write_homes(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    let user = |mode| Meta::owned(mode, USER_ID, USER_ID);
    layer.dir("home/user", user(0o755))?;
    layer.dir("workspace", user(0o755))?;
    let dot_files = [(".bashrc", BASHRC), (".profile", USER_PROFILE), (".bash_logout", "")];
    for (name, fallback) in dot_files {
        let skeleton = host.read_text(&format!("etc/skel/{name}"));
        let contents = skeleton.filter(|text| !super::secrets::looks_secret(text.as_bytes()));
        let contents = contents.unwrap_or_else(|| fallback.to_owned());
        layer.file(&format!("home/user/{name}"), contents, user(0o644))?;
    }
    layer.file("root/.bashrc", BASHRC, Meta::root(0o644))?;
    layer.file("root/.profile", USER_PROFILE, Meta::root(0o644))
}
