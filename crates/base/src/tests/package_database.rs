//! Which packages the database inside names.

use std::path::Path;

use super::fake_host::FakeHost;
use super::is_root;

const STATUS: &str = "Package: git
Status: install ok installed
Version: 1:2.1-3
Conffiles:
 /etc/gone.conf 0123456789abcdef0123456789abcdef
 /etc/profile.d/kept.sh 0123456789abcdef0123456789abcdef
Description: fast
 and more

Package: server
Status: install ok installed
Architecture: amd64
Depends: libserver1 (>= 1)
Version: 7-1

Package: libserver1
Status: install ok installed
Section: libs
Version: 7-1

Package: meta
Status: install ok installed
Depends: server
Version: 7-1
";

/// A host with a service, whose settings are not on the allow-list.
fn host_with_service() -> FakeHost {
    let host = FakeHost::new();
    host.file("var/lib/dpkg/status", STATUS);
    host.file("var/lib/dpkg/status-old", STATUS);
    host.file(
        "var/lib/dpkg/info/server:amd64.list",
        "/.\n/etc\n/etc/init.d\n/etc/init.d/server\n/etc/server.conf\n/usr/bin/server\n",
    );
    host.file("var/lib/dpkg/info/server:amd64.postinst", "#!/bin/sh\n");
    host.file("var/lib/dpkg/info/git.list", "/.\n/usr/bin/git\n");
    host.file("etc/init.d/server", "#!/bin/sh\n");
    host.file("etc/server.conf", "port 1\n");
    host.file(
        "var/lib/apt/extended_states",
        "Package: libserver1\nAuto-Installed: 1\n\nPackage: git\nAuto-Installed: 1\n\n",
    );
    host.file("etc/profile.d/kept.sh", "true\n");
    host.file("var/lib/ucf/hashfile", "0123  /etc/server.conf\n4567  /etc/profile.d/kept.sh\n");
    host
}

#[test]
fn a_service_without_its_settings_counts_as_not_installed() {
    if !is_root() {
        return;
    }
    let host = host_with_service();
    let base = host.base();
    let read = |path: &str| std::fs::read_to_string(base.root_layer.join(path)).unwrap();
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix("Package: ")).map(str::to_owned).collect()
    };
    assert_eq!(base.facts.withheld_packages, ["meta", "server"]);
    for path in ["var/lib/dpkg/status", "var/lib/dpkg/status-old"] {
        assert_eq!(names(&read(path)), ["git", "libserver1"], "{path}");
    }
    let status = read("var/lib/dpkg/status");
    let kept = "Conffiles:\n /etc/profile.d/kept.sh 0123456789abcdef0123456789abcdef\nDescription: fast\n and more\n";
    assert!(status.contains(kept), "what is not there was not deleted by anybody: {status}");
    let info = base.root_layer.join("var/lib/dpkg/info");
    assert!(info.join("git.list").exists());
    for name in ["server:amd64.list", "server:amd64.postinst"] {
        assert!(!info.join(Path::new(name)).exists(), "{name}");
    }
    assert_eq!(names(&read("var/lib/apt/extended_states")), ["git"], "nothing is offered for removal");
    assert_eq!(read("var/lib/ucf/hashfile"), "4567  /etc/profile.d/kept.sh\n", "what is not there can be made again");
}

#[test]
fn a_service_that_is_whole_inside_stays_installed() {
    if !is_root() {
        return;
    }
    let host = host_with_service();
    host.file(
        "var/lib/dpkg/info/server:amd64.list",
        "/usr/lib/systemd/system/server.service\n/etc/cron.daily/server\n",
    );
    host.file("etc/cron.daily/server", "true\n");
    host.file("var/lib/dpkg/status", STATUS.replace("/etc/gone.conf", "/etc/profile.d/kept.sh"));
    let base = host.base();
    assert!(base.facts.withheld_packages.is_empty());
    let status = std::fs::read_to_string(base.root_layer.join("var/lib/dpkg/status")).unwrap();
    assert_eq!(status, STATUS.replace("/etc/gone.conf", "/etc/profile.d/kept.sh"));
}
