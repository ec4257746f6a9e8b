//! Traps that a hostile or careless host may set.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::FileType;

use super::super::{BaseError, HostEnvironment, HostRoot, Pip, host_environment};
use super::fake_host::{FakeHost, GUEST, occurs_in, walk};
use super::is_root;

const SECRET: &str = "hunter2-never-inside";

fn is_whiteout(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == 0)
}

#[test]
fn secrets_of_the_host_stay_outside() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.file_with_mode("etc/shadow", SECRET, 0o640);
    host.file("etc/ssl/private/server.key", SECRET);
    host.file("etc/ssl/certs/server.pem", format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n"));
    host.file("etc/ssl/certs/other.key", SECRET);
    host.file("etc/apt/auth.conf", format!("machine x login y password {SECRET}"));
    host.file("etc/apt/auth.conf.d/x.conf", format!("machine x login y password {SECRET}"));
    host.file("etc/apt/apt.conf.d/99proxy", format!("Acquire::http::Proxy \"http://u:{SECRET}@proxy:3128\";\n"));
    host.file(
        "etc/apt/sources.list",
        format!("deb http://u:{SECRET}@d.example/ s main\ndeb http://e.example/ s main\n"),
    );
    host.file(
        "etc/apt/sources.list.d/a.sources",
        format!("Types: deb\nURIs: https://u:{SECRET}@d.example/\nSuites: s\n"),
    );
    host.file("etc/apt/sources.list.d/b.list.save", SECRET);
    host.file("etc/pip.conf", format!("[global]\nindex-url = https://u:{SECRET}@pypi.example/\ntimeout = 9\n"));
    host.file("etc/npmrc", format!("//r.example/:_authToken={SECRET}\nfund=false\n"));
    host.file("usr/etc/npmrc", format!("_auth={SECRET}\n"));
    host.file("etc/gitconfig", format!("[http]\n\textraHeader = {SECRET}\n[url \"https://{SECRET}@g\"]\n"));
    host.file("etc/profile.d/tokens.sh", format!("export API_TOKEN={SECRET}\n"));
    host.file("etc/skel/.profile", format!("export GITHUB_TOKEN={SECRET}\n"));
    host.file("etc/environment", format!("KEY={SECRET}\n"));
    host.file("etc/hosts", format!("10.0.0.1 {SECRET}\n"));
    host.file("etc/resolv.conf", format!("search {SECRET}\n"));
    host.file("root/.ssh/id", SECRET);
    host.file("home/alice/x", SECRET);
    host.file("opt/x", SECRET);
    host.file("srv/x", SECRET);
    host.file("var/log/x", SECRET);
    host.file("var/lib/other/x", SECRET);
    host.file("usr/local/etc/x", SECRET);
    host.file(
        "usr/local/share/ca-certificates/bad.crt",
        format!("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----{SECRET}"),
    );
    host.file("etc/unknown.conf", SECRET);

    let base = host.base();

    for layer in [&base.root_layer, &base.usr_layer] {
        assert_eq!(occurs_in(layer, SECRET.as_bytes()), None);
        assert_eq!(occurs_in(layer, b"alice"), None);
    }
    let read = |path: &str| std::fs::read_to_string(base.root_layer.join(path)).unwrap();
    assert_eq!(read("etc/apt/sources.list"), "deb http://e.example/ s main\n");
    assert_eq!(read("etc/pip.conf"), "[global]\ntimeout = 9\n");
    assert_eq!(read("etc/npmrc"), "fund=false\n");
    assert_eq!(std::fs::read_to_string(base.usr_layer.join("etc/npmrc")).unwrap(), "");
    assert!(!read("home/user/.profile").is_empty());
}

#[test]
fn links_are_copied_as_links_and_never_followed() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("x.sh"), SECRET).unwrap();
    std::fs::write(outside.path().join("other"), SECRET).unwrap();
    let outside_text = outside.path().to_str().unwrap();
    host.file_with_mode("etc/shadow", SECRET, 0o640);
    host.link("etc/alternatives/x", "/etc/shadow");
    host.link("etc/localtime", "../../../../../../etc/shadow");
    // A directory on the list, one above entries of the list, and directories that we write to ourselves.
    host.link("etc/fonts", outside_text);
    host.link("etc/apt", outside_text);
    host.link("etc/profile.d", outside_text);
    host.link("etc/ssl", outside_text);
    host.link("etc/pip.conf", &format!("{outside_text}/other"));
    host.link("var/log", outside_text);
    host.link("dev", outside_text);
    host.link("etc/resolv.conf", &format!("{outside_text}/resolv"));

    let base = host.base();

    assert_eq!(occurs_in(&base.root_layer, SECRET.as_bytes()), None);
    let target = |path: &str| std::fs::read_link(base.root_layer.join(path)).unwrap();
    assert_eq!(target("etc/alternatives/x"), Path::new("/etc/shadow"));
    assert_eq!(target("etc/fonts"), outside.path());
    let is_real_dir = |path: &str| base.root_layer.join(path).symlink_metadata().unwrap().is_dir();
    for directory in ["dev", "proc", "sys", "tmp", "run", "var/log", "etc/profile.d", "etc/apt"] {
        assert!(is_real_dir(directory), "{directory}");
    }
    assert!(base.root_layer.join("etc/resolv.conf").symlink_metadata().unwrap().is_file());
    let left: Vec<_> = walk(outside.path());
    assert_eq!(left, [Path::new("other"), Path::new("x.sh")], "nothing was written through a link");
}

#[test]
fn special_and_private_files_are_left_out() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.node("etc/fonts/fifo", FileType::Fifo);
    host.node("etc/fonts/null", FileType::CharacterDevice);
    host.node("etc/pip.conf", FileType::Fifo);
    host.node("etc/apt/sources.list", FileType::Fifo);
    host.file_with_mode("etc/fonts/private.conf", SECRET, 0o600);
    host.dir_with_mode("etc/security/hidden", 0o750);
    host.file("etc/security/hidden/x", SECRET);
    host.file_with_mode("etc/skel/set-uid", "x", 0o4755);

    let base = host.base();

    let mut fonts = walk(&base.root_layer.join("etc/fonts"));
    fonts.retain(|path| path != Path::new(""));
    assert!(fonts.is_empty(), "{fonts:?}");
    assert!(!base.root_layer.join("etc/security/hidden").exists());
    assert!(!base.root_layer.join("etc/apt/sources.list").exists());
    assert_eq!(base.root_layer.join("etc/skel/set-uid").metadata().unwrap().mode() & 0o7777, 0o755);
    let manifest = std::fs::read_to_string(base.root_layer.parent().unwrap().join("manifest.json")).unwrap();
    for path in ["etc/fonts/fifo", "etc/fonts/null", "etc/fonts/private.conf", "etc/security/hidden"] {
        assert!(manifest.contains(path), "{path}");
    }
}

#[test]
fn odd_names_are_copied_and_masked() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    let odd = std::ffi::OsStr::from_bytes(b"a\nb\xff \"\\");
    std::fs::create_dir_all(host.root().join("etc/terminfo")).unwrap();
    std::fs::write(host.root().join("etc/terminfo").join(odd), "fine").unwrap();
    host.dir("usr/share");
    std::fs::create_dir(host.root().join("usr/share").join(odd)).unwrap();
    rustix::fs::chmod(host.root().join("usr/share").join(odd), rustix::fs::Mode::RWXU).unwrap();

    let base = host.base();

    assert_eq!(std::fs::read(base.root_layer.join("etc/terminfo").join(odd)).unwrap(), b"fine");
    assert!(is_whiteout(&base.usr_layer.join("share").join(odd)));
}

#[test]
fn private_parts_of_usr_are_masked_and_local_is_hidden() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.file_with_mode("usr/share/app/secret", SECRET, 0o640);
    host.dir_with_mode("usr/lib/app/rules.d", 0o700);
    host.file("usr/lib/app/rules.d/x", SECRET);
    host.node("usr/lib/app/fifo", FileType::Fifo);
    host.dir_with_mode("usr/share/app", 0o2755);
    host.file_with_mode("usr/bin/su", "#!", 0o4755);

    let base = host.base();

    for masked in ["share/app/secret", "lib/app/rules.d", "lib/app/fifo", "lib/python3.11/EXTERNALLY-MANAGED"] {
        assert!(is_whiteout(&base.usr_layer.join(masked)), "{masked}");
    }
    assert_eq!(base.usr_layer.join("share/app").metadata().unwrap().mode() & 0o7777, 0o2755);
    assert!(!base.usr_layer.join("bin/su").exists());
    assert_eq!(base.facts.set_id_programs, 1);
    let mut opaque = [0_u8; 8];
    let length = rustix::fs::getxattr(base.usr_layer.join("local"), "trusted.overlay.opaque", &mut opaque).unwrap();
    assert_eq!(&opaque[..length], b"y");
    assert!(base.usr_layer.join("local/lib/python3.11/dist-packages").is_dir());
    assert!(!base.usr_layer.join("local/bin/tool-of-the-host").exists());
}

#[test]
fn what_agents_expect_is_there() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.file("usr/share/python-wheels/pip-23.0-py3-none-any.whl", "PK");
    host.file_with_mode("usr/bin/sudo", "the host's", 0o4111);

    let base = host.base();

    let sudo = base.usr_layer.join("bin/sudo");
    let metadata = sudo.metadata().unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o4755, 0, 0));
    assert_eq!(std::fs::read(sudo).unwrap(), GUEST);
    assert_eq!(std::fs::read_link(base.usr_layer.join("bin/python")).unwrap(), Path::new("python3"));
    assert!(base.usr_layer.join("sbin/policy-rc.d").is_file());
    assert_eq!((base.facts.pip, base.facts.git.as_deref()), (Pip::Wheel, Some("2.1")));
    assert!(base.usr_layer.join("local/bin/pip3").is_file());
    assert_eq!(base.facts.missing, ["nodejs", "npm", "curl"]);
    assert_eq!(base.facts.system, "Small Linux 1");
    let owner = |path: &str| {
        let metadata = base.root_layer.join(path).metadata().unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(owner("home/user"), (1000, 1000, 0o755));
    assert_eq!(owner("home/user/.bashrc"), (1000, 1000, 0o644));
    assert_eq!(owner("root"), (0, 0, 0o700));
    assert_eq!(owner("tmp"), (0, 0, 0o1777));
    assert_eq!(owner("etc/shadow"), (0, 42, 0o640));
    assert_eq!(std::fs::read_link(base.root_layer.join("bin")).unwrap(), Path::new("usr/bin"));
}

#[test]
fn a_linked_sbin_is_not_hidden_by_our_own() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    std::fs::remove_dir(host.root().join("usr/sbin")).unwrap();
    host.link("usr/sbin", "bin");

    let base = host.base();

    assert!(base.usr_layer.join("bin/policy-rc.d").is_file());
    assert!(base.usr_layer.join("sbin").symlink_metadata().is_err());
}

#[test]
fn a_host_without_a_merged_usr_is_refused() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    std::fs::remove_file(host.root().join("lib")).unwrap();
    host.dir("lib");

    assert!(matches!(host.try_base(), Err(BaseError::NotUsrMerged(path)) if path == Path::new("/lib")));
    assert!(walk(&host.layers()).iter().all(|path| !path.to_string_lossy().contains("tmp")));
}

#[test]
fn variables_go_along_without_passwords_or_missing_files() {
    if !is_root() {
        return;
    }
    let host = FakeHost::new();
    host.file("etc/ssl/certs/ca.crt", "-----BEGIN CERTIFICATE-----\n");
    host.file_with_mode(
        "home/alice/.npmrc",
        &format!("registry=https://npm.example/\n//npm.example/:_authToken={SECRET}\n"),
        0o600,
    );
    host.file(
        "home/alice/.config/pip/pip.conf",
        format!("[global]\nindex-url=https://u:{SECRET}@p.example/\nextra-index-url=https://q.example/\n"),
    );
    let base = host.base();
    let given = [
        ("HOME", "/home/alice"),
        ("SSL_CERT_FILE", "/etc/ssl/certs/ca.crt"),
        ("PIP_CERT", "/opt/ca.crt"),
        ("http_proxy", "http://u:hunter2-never-inside@proxy:3128"),
        ("https_proxy", "http://proxy.example:3128"),
        ("ALL_PROXY", "http://127.0.0.1:3128"),
        ("no_proxy", "localhost,.example"),
        ("PIP_INDEX_URL", "https://hunter2-never-inside@pypi.example/simple"),
        ("PIP_FIND_LINKS", "/opt/wheels"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("PATH", "/opt/bin"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));

    let root = HostRoot(host.root());
    let picked = host_environment(&base, &root, HostEnvironment::ALL, given.clone());

    let expected = [
        ("PIP_EXTRA_INDEX_URL", "https://q.example/"),
        ("SSL_CERT_FILE", "/etc/ssl/certs/ca.crt"),
        ("https_proxy", "http://proxy.example:3128"),
        ("no_proxy", "localhost,.example"),
        ("npm_config_registry", "https://npm.example/"),
    ];
    assert_eq!(picked, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert!(host_environment(&base, &root, HostEnvironment::NONE, given).is_empty());
}
