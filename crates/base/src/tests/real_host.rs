//! The base of the machine that the tests run on.

use super::no_sandboxes;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use super::super::allowlist::{ETC, VAR, names_match};
use super::super::{Base, BaseError, BaseOptions, ensure_base};
use super::fake_host::{GUEST, occurs_in, walk};
use super::is_root;

#[test]
fn the_real_host_gives_a_base_of_the_allow_list_alone() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let options = BaseOptions::default();
    let base = match ensure_base(scratch.path(), GUEST, &options, no_sandboxes) {
        Err(BaseError::NotUsrMerged(path)) => return eprintln!("skipped: {} is not merged", path.display()),
        base => base.unwrap(),
    };

    for layer in [&base.root_layer, &base.usr_layer] {
        assert_eq!(occurs_in(layer, b"PRIVATE KEY-----"), None);
        for path in walk(layer) {
            let metadata = layer.join(&path).symlink_metadata().unwrap();
            assert!(metadata.uid() <= 1000 && metadata.gid() <= 1000, "{}", path.display());
        }
    }
    assert_from_allow_list(&base);
    for path in ["etc/passwd", "etc/shadow", "etc/resolv.conf", "home/user/.bashrc", "var/tmp", "dev/pts", "workspace"]
    {
        assert!(base.root_layer.join(path).symlink_metadata().is_ok(), "{path}");
    }
    assert!(!base.root_layer.join("etc/ssl/private").exists());

    let began = Instant::now();
    let again = ensure_base(scratch.path(), GUEST, &options, no_sandboxes).unwrap();
    eprintln!("found again in {:?}", began.elapsed());
    // Packages may be installed on the machine while the test runs. Then a second generation is correct.
    if again.generation == base.generation {
        assert_eq!(again.facts, base.facts);
    }
}

/// Asserts that every copied file is on the list or one of the few that are generated.
fn assert_from_allow_list(base: &Base) {
    let made = [
        "etc/apt",
        "etc/environment",
        "etc/fstab",
        "etc/gitconfig",
        "etc/group",
        "etc/gshadow",
        "etc/hostname",
        "etc/hosts",
        "etc/machine-id",
        "etc/mtab",
        "etc/networks",
        "etc/npmrc",
        "etc/nsswitch.conf",
        "etc/passwd",
        "etc/pip.conf",
        "etc/pki/tls/openssl.cnf",
        "etc/profile.d/isopod.sh",
        "etc/resolv.conf",
        "etc/shadow",
        "etc/ssl/openssl.cnf",
        "etc/sudoers.d/isopod",
        "var/lock",
        "var/log",
        "var/run",
        "var/spool/mail",
    ];
    let listed = |path: &Path, pattern: &str| {
        path.ancestors().any(|above| {
            above.to_str().is_some_and(|above| {
                above.matches('/').count() == pattern.matches('/').count() && names_match(pattern, above)
            })
        })
    };
    for path in walk(&base.root_layer) {
        let is_directory = base.root_layer.join(&path).symlink_metadata().unwrap().is_dir();
        let is_settings = path.starts_with("etc") || path.starts_with("var");
        if is_directory || !is_settings {
            continue;
        }
        let is_listed = ETC.iter().chain(VAR).any(|entry| listed(&path, entry.path));
        assert!(is_listed || made.iter().any(|made| path.starts_with(made)), "{}", path.display());
    }
}
