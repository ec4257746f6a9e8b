//! When a base is found, rebuilt, locked and removed.

use super::no_sandboxes;
use std::time::SystemTime;

use super::super::{
    BaseError, Generation, current_fingerprint, ensure_base, list_generations, open_generation, remove_generation,
};
use super::fake_host::{FakeHost, GUEST, walk};
use super::is_root;

#[test]
fn a_second_ensure_finds_the_first_and_writes_nothing() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let first = host.base();
    let marks = |host: &FakeHost| -> Vec<_> {
        let paths = walk(&host.layers());
        paths.into_iter().map(|path| (path.clone(), times(&host.layers().join(path)))).collect()
    };
    let before = marks(&host);

    let second = host.base();

    assert_eq!(first.generation, second.generation);
    assert_eq!(first.facts, second.facts);
    assert_eq!(before, marks(&host));
}

fn times(path: &std::path::Path) -> (SystemTime, u64) {
    use std::os::unix::fs::MetadataExt;
    let metadata = path.symlink_metadata().unwrap();
    (metadata.modified().unwrap(), metadata.ino())
}

#[test]
fn login_shells_know_who_they_are_without_a_process() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.file("etc/profile", "if [ \"$(id -u)\" -eq 0 ]; then PATH=/sbin; fi\n");
    let base = host.base();
    let read = |path: &str| std::fs::read_to_string(base.root_layer.join(path)).unwrap();
    assert_eq!(read("etc/profile"), "if [ \"${EUID:-$(id -u)}\" -eq 0 ]; then PATH=/sbin; fi\n");
    assert!(!read("etc/profile.d/isopod.sh").contains("\"$(id"));
    let secret = FakeHost::new();
    secret.file(
        "etc/profile",
        "test \"$(id -u)\"; export AWS_SECRET_ACCESS_KEY=abcdefghijklmnopqrstuvwxyz0123456789ABCD\n",
    );
    assert!(!secret.base().root_layer.join("etc/profile").exists(), "a profile with a secret stays outside");
}

#[test]
fn a_changed_package_database_begins_a_new_generation() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let first = host.base();
    host.file("var/lib/dpkg/status", "Package: git\nStatus: install ok installed\nVersion: 1:2.2-1\n\n");

    let current = current_fingerprint(&host.layers(), GUEST, &host.options()).unwrap();
    let second = host.base();

    assert_ne!(first.generation, second.generation);
    assert_eq!(current, second.generation);
    assert_eq!(second.facts.git.as_deref(), Some("2.2"));
}

#[test]
fn rewriting_the_same_contents_keeps_the_generation() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let first = host.base();
    let status = std::fs::read(host.root().join("var/lib/dpkg/status")).unwrap();
    std::fs::remove_file(host.root().join("var/lib/dpkg/status")).unwrap();
    host.file("var/lib/dpkg/status", status);
    host.file("etc/resolv.conf", "nameserver 192.0.2.1\n");

    assert_eq!(first.generation, host.base().generation);
}

#[test]
fn another_guest_or_a_frozen_base_is_another_generation() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let first = host.base();
    let other_guest = ensure_base(&host.layers(), b"another", &host.options(), no_sandboxes).unwrap();
    let mut options = host.options();
    options.frozen = true;
    let frozen = ensure_base(&host.layers(), GUEST, &options, no_sandboxes).unwrap();

    assert_ne!(first.generation, other_guest.generation);
    assert_ne!(first.generation, frozen.generation);
    assert_eq!(first.generation, host.base().generation);
}

#[test]
fn what_a_crashed_build_left_is_removed() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let leftover = host.layers().join(".base-tmp-base-0123456789abcdef");
    std::fs::create_dir_all(leftover.join("root/etc")).unwrap();
    let keys = host.layers().join(".base-tmp-keys-1-0");
    std::fs::write(&keys, "{").unwrap();

    host.base();

    assert!(!leftover.exists() && !keys.exists());
}

#[test]
fn a_damaged_generation_is_built_again() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let first = host.base();
    let id = first.generation.clone();
    std::fs::write(host.layers().join(&id).join("manifest.json"), "{").unwrap();

    assert!(matches!(host.try_base(), Err(BaseError::InUse(_))), "sandboxes may still live on it");
    drop(first);
    let second = host.base();

    assert_eq!(id, second.generation);
    assert!(second.root_layer.join("etc/passwd").is_file());
}

#[test]
fn a_held_generation_is_not_removed() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let base = host.base();
    let id = base.generation.clone();
    let held_again = open_generation(&host.layers(), &id).unwrap();
    drop(base);

    assert!(matches!(remove_generation(&host.layers(), &id, no_sandboxes), Err(BaseError::InUse(_))));
    assert_eq!(list_generations(&host.layers(), no_sandboxes).unwrap(), [Generation { id: id.clone(), in_use: true }]);
    drop(held_again);
    assert_eq!(list_generations(&host.layers(), no_sandboxes).unwrap(), [Generation { id: id.clone(), in_use: false }]);
    remove_generation(&host.layers(), &id, no_sandboxes).unwrap();
    assert!(list_generations(&host.layers(), no_sandboxes).unwrap().is_empty());
    assert!(matches!(open_generation(&host.layers(), &id), Err(BaseError::NoSuchGeneration(_))));
    assert_eq!(host.base().generation, id);
}

#[test]
fn names_that_are_no_generations_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for id in ["", "..", "base-", "base-../../../../etc", "base-0123456789ABCDEF", "base-0123456789abcdef/x"] {
        assert!(matches!(open_generation(scratch.path(), id), Err(BaseError::NoSuchGeneration(_))), "{id}");
        assert!(
            matches!(remove_generation(scratch.path(), id, no_sandboxes), Err(BaseError::NoSuchGeneration(_))),
            "{id}"
        );
    }
    assert!(list_generations(&scratch.path().join("absent"), no_sandboxes).unwrap().is_empty());
}

#[test]
fn many_at_once_build_one() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let host = &host;
    let generations: Vec<String> = std::thread::scope(|scope| {
        let builders: Vec<_> = (0..8).map(|_| scope.spawn(|| host.base().generation)).collect();
        builders.into_iter().map(|builder| builder.join().unwrap()).collect()
    });

    assert!(generations.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(list_generations(&host.layers(), no_sandboxes).unwrap().len(), 1);
}
