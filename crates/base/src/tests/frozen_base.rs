//! Tests of a base that is a full copy.

use super::no_sandboxes;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::super::ensure_base;
use super::fake_host::{FakeHost, GUEST, occurs_in};
use super::is_root;

#[test]
fn a_frozen_base_is_a_faithful_copy_without_what_is_hidden() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.file_with_mode("usr/bin/su", "#!su", 0o4755);
    host.file_with_mode("usr/share/app/secret", "never-inside", 0o600);
    host.file("usr/bin/one", "linked");
    std::fs::hard_link(host.root().join("usr/bin/one"), host.root().join("usr/bin/two")).unwrap();
    let capability = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let ping = host.file("usr/bin/ping", "#!ping");
    rustix::fs::setxattr(&ping, "security.capability", capability, rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::chown(host.root().join("usr/share/app"), None, Some(rustix::fs::Gid::from_raw(33))).unwrap();

    let mut options = host.options();
    options.frozen = true;
    let base = ensure_base(&host.layers(), GUEST, &options, no_sandboxes).unwrap();

    let at = |path: &str| base.usr_layer.join(path);
    assert_eq!(base.host_usr, None);
    assert_eq!(at("bin/su").metadata().unwrap().mode() & 0o7777, 0o4755);
    assert_eq!(at("bin/one").metadata().unwrap().ino(), at("bin/two").metadata().unwrap().ino());
    assert_eq!(at("share/app").metadata().unwrap().gid(), 33);
    assert_eq!(std::fs::read_link(at("bin/python3")).unwrap(), Path::new("python3.11"));
    let original = host.root().join("usr/bin/su").metadata().unwrap().modified().unwrap();
    assert_eq!(at("bin/su").metadata().unwrap().modified().unwrap(), original);
    let mut value = [0_u8; 64];
    let length = rustix::fs::getxattr(at("bin/ping"), "security.capability", &mut value).unwrap();
    assert_eq!(&value[..length], capability);
    assert_eq!(occurs_in(&base.usr_layer, b"never-inside"), None);
    assert!(!at("local/bin/tool-of-the-host").exists());
    assert!(at("lib/python3.11/EXTERNALLY-MANAGED").symlink_metadata().is_err());
}
