//! `isopod setup` on a machine that lacks something: a mount namespace in which some programs are no files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use isopod_testkit::{StateDir, require_root};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// Runs a script where `curl` is missing, which every machine that runs the tests has, and apt only writes down how it was
/// called.
fn without_curl(directory: &Path, script: &str) -> Output {
    require_root();
    let apt = directory.join("apt-get");
    fs::write(&apt, format!("#!/bin/sh\necho \"$@\" >> {}\n", directory.join("calls").display())).unwrap();
    fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).unwrap();
    let mounts = format!("mount --bind /dev/null /usr/bin/curl && mount --bind {} /usr/bin/apt-get", apt.display());
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{mounts} && {script}")]).stdin(Stdio::null());
    command.output().unwrap()
}

fn calls(directory: &Path) -> Vec<String> {
    let calls = fs::read_to_string(directory.join("calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn nothing_is_installed_without_a_yes() {
    let directory = tempfile::tempdir().unwrap();
    let refused = without_curl(directory.path(), &format!("{BINARY} setup"));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stdout).ends_with("nothing was installed; answer y, or add --yes\n"), "{refused:?}");
    assert!(calls(directory.path()).is_empty());
}

#[test]
fn what_is_missing_is_printed_and_installed_by_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let installed = without_curl(directory.path(), &format!("{BINARY} setup --yes"));
    assert!(installed.status.success(), "{installed:?}");
    let told = text(&installed.stdout);
    assert!(told.contains("  curl           curl in sandboxes\n"), "{told}");
    let calls = calls(directory.path());
    let [update, install] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(update, "update -qq");
    assert!(install.starts_with("install --yes --no-install-recommends ") && install.ends_with("curl"), "{install}");
    assert!(told.contains(&format!("apt-get {install}\n")), "it says what it does: {told}");
}

#[test]
fn doctor_and_the_start_of_a_server_name_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::new(BINARY);
    let isopod = format!("{BINARY} --state-dir {}", state.path().display());
    let examined = text(&without_curl(directory.path(), &format!("{isopod} doctor")).stdout);
    let finding = examined.lines().position(|line| line.starts_with("warn  packages")).unwrap();
    let lines: Vec<&str> = examined.lines().skip(finding).take(2).collect();
    assert!(lines[0].contains("curl (curl in sandboxes)") && lines[1].contains("isopod setup"), "{examined}");

    let out = directory.path().join("out").display().to_string();
    let serve = format!(
        "{isopod} serve --listen 127.0.0.1:0 --prepare none > {out} & server=$!; \
         until grep -q 'is ready' {out}; do kill -0 $server || exit 1; sleep 0.05; done; kill $server; wait $server"
    );
    let log = text(&without_curl(directory.path(), &serve).stderr);
    let line = log.lines().find(|line| line.contains("`isopod setup` installs")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("curl (curl in sandboxes)"), "{line}");
    assert!(log.contains("sandboxes write to a"), "it says where sandboxes write: {log}");
    state.assert_nothing_left();
}
