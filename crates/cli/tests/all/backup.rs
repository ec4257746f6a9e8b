//! `isopod backup` of a server that works, and `isopod restore` in another state directory.

use crate::served;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use isopod_testkit::{Finished, StateDir};
use served::{BINARY, Served};

/// A template whose layer adds, changes and hides files.
const DOCKERFILE: &str = "FROM base\nUSER root\nRUN echo kept > /kept && chown 1000:1000 /kept && rm /etc/issue && \
                          rm -r /etc/alternatives && mkdir /etc/alternatives && echo new > /etc/alternatives/new\nUSER user\n";

fn serve(state: &StateDir) -> Served {
    Served::start(state, &["--listen", "127.0.0.1:0"])
}

fn with_key(server: &Served, key: &str, arguments: &[&str]) -> Finished {
    server.command(arguments).env("E2B_API_KEY", key).output().unwrap().into()
}

/// Where a member of an archive begins, in bytes: cut there, the archive is a valid one.
fn start_of_member(archive: &Path, name: &str) -> usize {
    let listed = Command::new("tar").args(["--list", "--block-number", "--file"]).arg(archive).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.ends_with(&format!(": {name}"))).unwrap();
    let block: usize = line.split([' ', ':']).nth(1).unwrap().parse().unwrap();
    block * 512
}

fn failure(finished: &Finished) -> String {
    assert_eq!(finished.code(), 125, "{finished:?}");
    finished.stderr()
}

#[test]
fn a_backup_of_a_working_server_has_its_keys_and_templates() {
    let (state, other) = (StateDir::new(BINARY), StateDir::new(BINARY));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    let name = file.to_str().unwrap();
    fs::write(directory.path().join("Dockerfile"), DOCKERFILE).unwrap();
    let server = serve(&state);
    let own_list = "recipes/code-interpreter-v1/packages.txt";
    fs::create_dir_all(state.path().join(own_list).parent().unwrap()).unwrap();
    fs::write(state.path().join(own_list), "ipython\n").unwrap();
    let key = server.export("E2B_API_KEY").to_owned();
    server.run(&["template", "build", directory.path().to_str().unwrap(), "--name", "mine"]).ok();
    let sandbox = server.create(&["--template", "mine"]);

    state.isopod().run(&["backup", name]).ok();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = failure(&state.isopod().run(&["backup", name]));
    assert!(again.contains("exists already"), "{again}");
    assert_eq!(server.run(&["exec", &sandbox, "--", "cat", "/kept"]).ok(), "kept\n", "it works on");
    server.run(&["kill", &sandbox]).ok();
    server.stop();
    state.assert_nothing_left();
    let left: Vec<_> = fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("backup")), "{left:?}");

    let target = other.path().join("state");
    let restored = other.isopod().with_state(&target);
    let wrong = failure(&restored.run(&["restore", directory.path().join("Dockerfile").to_str().unwrap()]));
    assert!(wrong.contains("is no backup of Isopod"), "{wrong}");
    let cut = directory.path().join("cut.tar");
    let whole = fs::read(&file).unwrap();
    for length in [whole.len() / 2 + 100, start_of_member(&file, "templates/")] {
        fs::write(&cut, &whole[..length]).unwrap();
        let damaged = failure(&restored.run(&["restore", cut.to_str().unwrap()]));
        assert!(damaged.contains("is damaged"), "{damaged}");
        assert!(!target.exists(), "a part of it was restored");
    }
    restored.run(&["restore", name]).ok();
    assert_eq!(fs::read_to_string(target.join(own_list)).unwrap(), "ipython\n");
    let refused = failure(&restored.run(&["restore", name]));
    assert!(refused.contains("is not empty"), "{refused}");

    let command = restored.command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "1"]);
    let server = Served::start_command(&other, command);
    let sandbox = with_key(&server, &key, &["create", "--detach", "--template", "mine"]).ok().trim().to_owned();
    let script = "cat /kept && stat -c %u /kept && test ! -e /etc/issue && ls /etc/alternatives";
    let shown = with_key(&server, &key, &["exec", &sandbox, "--", "sh", "-c", script]).ok();
    assert_eq!(shown, "kept\n1000\nnew\n");
    let listed = with_key(&server, &key, &["ls"]).ok();
    assert_eq!(listed.lines().count(), 2, "only the new sandbox: {listed}");
    with_key(&server, &key, &["kill", &sandbox]).ok();
    server.stop();
    restored.run(&["uninstall", "--yes"]).ok();
}
