//! `isopod tls trust`: curl and Chromium open a sandbox's preview over https, without options of their own.
//!
//! The machine's lists stay as they are: the test changes copies, which only its own processes see.

use crate::served;

use std::path::Path;
use std::process::{Command, Output};

use isopod_testkit::StateDir;
use served::{BINARY, Served, text};

/// Runs a shell script that sees a copy of the system's lists, and an empty home.
fn with_copied_lists(scratch: &Path, script: &str) -> Output {
    let view = format!(
        "set -e; cp -a /etc/ssl {0}/ssl; mkdir -p {0}/own /usr/local/share/ca-certificates; \
         mount --bind {0}/ssl /etc/ssl; mount --bind {0}/own /usr/local/share/ca-certificates; {script}",
        scratch.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", &view]);
    unshare.env("HOME", scratch.join("home")).env_remove("SUDO_USER").output().unwrap()
}

#[test]
fn curl_and_chromium_open_a_preview_once_the_machine_trusts_it_and_not_afterwards() {
    let state = StateDir::new(BINARY);
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir(scratch.path().join("home")).unwrap();
    let server = Served::start(&state, &["--listen", "127.0.0.1:0"]);
    let id = server.run(&["create", "--detach"]).ok().trim().to_owned();
    server.run(&["exec", &id, "--", "sh", "-c", "mkdir /tmp/w; echo '<p>seen over https</p>' >/tmp/w/index.html"]).ok();
    let serve = "cd /tmp/w; nohup python3 -m http.server 8000 >/dev/null 2>&1 & \
                 until curl -s localhost:8000 >/dev/null; do sleep 0.1; done";
    server.run(&["exec", &id, "--", "sh", "-c", serve]).ok();

    let url = format!("https://8000-{id}.isopod.localhost:{}/", server.port());
    let isopod = format!("{BINARY} --state-dir {}", state.path().display());
    // Chromium gives up on a page when an interface comes or goes on the machine, and other tests make interfaces.
    let browse = format!(
        "for try in 1 2 3 4 5; do \
         timeout 60 chromium --headless --no-sandbox --disable-gpu --dump-dom {url} >{scratch}/page 2>&1 || true; \
         grep -q ERR_NETWORK_CHANGED {scratch}/page || break; done; cat {scratch}/page",
        scratch = scratch.path().display()
    );
    let script = format!(
        "echo BEFORE; curl -sS {url} 2>&1 || true; {isopod} tls trust; \
         echo TRUSTED; curl -sS {url}; {browse}; {isopod} tls trust; {isopod} tls trust --remove; \
         echo REMOVED; curl -sS {url} 2>&1 || true; {browse}; {isopod} tls trust --remove"
    );
    let output = with_copied_lists(scratch.path(), &script);
    let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{all}\n{errors}");
    let (before, rest) = all.split_once("TRUSTED").unwrap();
    let (trusted, removed) = rest.split_once("REMOVED").unwrap();
    assert!(!before.contains("seen over https"), "a stranger's certificate is refused: {before}");
    assert_eq!(trusted.matches("<p>seen over https</p>").count(), 2, "curl and Chromium: {trusted}");
    assert!(!removed.contains("seen over https"), "{removed}");
    assert!(removed.contains("This machine does not trust the authority."), "{removed}");

    server.run(&["kill", &id]).ok();
    server.stop();
    state.assert_nothing_left();
}
