//! The systemd unit.

use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

fn isopod(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(BINARY).args(arguments).env_remove("ISOPOD_STATE_DIR").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn the_unit_is_the_one_in_the_golden_file() {
    let (unit, _, code) = isopod(&[
        "service",
        "install",
        "--print",
        "--config",
        "/etc/isopod/isopod.toml",
        "--",
        "--domain",
        "box.example",
    ]);
    assert_eq!(code, Some(0));
    assert_eq!(unit.replace(BINARY, "/usr/local/bin/isopod"), include_str!("../golden/isopod.service"));
}

#[test]
fn without_systemd_nothing_is_written() {
    if Path::new("/run/systemd/system").exists() {
        return;
    }
    let (_, said, code) = isopod(&["service", "install"]);
    assert!(code == Some(125) && said.contains("--print"), "{said}");
    assert!(!Path::new("/etc/systemd/system/isopod.service").exists());
    assert_eq!(isopod(&["service", "uninstall"]).2, Some(0));
}
