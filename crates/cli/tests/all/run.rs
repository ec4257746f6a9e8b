//! `isopod run`, as people use it.

use isopod_testkit::StateDir;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[test]
fn bad_requests_are_refused_before_anything_is_made() {
    let state = StateDir::new(BINARY);
    for (arguments, expected) in [
        (vec!["run", "--template", "nosuch", "--", "true"], "there is no template \"nosuch\""),
        (vec!["run", "--memory", "1k", "--", "true"], "memory must be between"),
        (vec!["run", "--timeout", "0", "--", "true"], "--timeout must be a positive number"),
        (vec!["run", "-v", "nonsense", "--", "true"], "is not HOST_PATH:/PATH/INSIDE"),
        (vec!["run", "-w", "/no/such/dir", "--", "true"], "cwd '/no/such/dir' does not exist"),
        (vec!["run", "-u", "nobody-here", "--", "true"], "invalid username: 'nobody-here'"),
        (vec!["run", "--", "no-such-program"], "no-such-program"),
    ] {
        let finished = state.isopod().run(&arguments);
        assert_eq!(finished.code(), 125, "{arguments:?}: {}", finished.stderr());
        assert!(finished.stderr().contains(expected), "{arguments:?}: {}", finished.stderr());
    }
    for arguments in
        [vec!["run", "--memory", "lots", "--", "true"], vec!["run", "--cpu", "0", "--", "true"], vec!["run"]]
    {
        assert_eq!(state.isopod().run(&arguments).code(), 2, "{arguments:?}");
    }
    state.assert_nothing_left();
}

#[test]
fn output_input_and_exit_codes_pass_through() {
    let state = StateDir::new(BINARY);
    let isopod = state.isopod();
    let both = isopod.run(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((both.stdout().as_str(), both.stderr().as_str(), both.code()), ("out\n", "err\n", 7));
    assert_eq!(isopod.run(&["run", "--", "sh", "-c", "kill -9 $$"]).code(), 137);
    assert_eq!(isopod.run_with_input(&["run", "--", "wc", "-c"], &vec![b'x'; 1 << 20]).ok().trim(), "1048576");
    assert_eq!(isopod.run(&["run", "--", "whoami"]).ok(), "user\n");
    assert_eq!(isopod.run(&["run", "-u", "root", "--", "id", "-u"]).ok(), "0\n");
    assert_eq!(isopod.run(&["run", "-e", "A=1 2", "-w", "/tmp", "--", "sh", "-c", "echo $A $PWD"]).ok(), "1 2 /tmp\n");
    state.assert_nothing_left();
}

#[test]
fn scripts_are_given_to_their_interpreter() {
    let state = StateDir::new(BINARY);
    let files = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.py", "import sys; print('python', sys.argv[1])"),
        ("a.sh", "echo shell $1"),
        ("a.js", "console.log('node', process.argv[2])"),
    ] {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        let output = state.isopod().run(&["run", path.to_str().unwrap(), "arg"]).ok();
        assert!(output.ends_with(" arg\n"), "{name}: {output}");
    }
    state.assert_nothing_left();
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    let state = StateDir::new(BINARY);
    let late = state.isopod().run(&["run", "--timeout", "0.3", "--", "sh", "-c", "trap '' TERM; sleep 1000"]);
    assert_eq!(late.code(), 124, "{}", late.stderr());
    state.assert_nothing_left();
}

#[test]
fn json_holds_output_and_exit_code() {
    let state = StateDir::new(BINARY);
    let finished = state.isopod().run(&["run", "--json", "--", "sh", "-c", "printf 'a\\377b'; echo e >&2; exit 3"]);
    let value: serde_json::Value = serde_json::from_str(&finished.stdout()).unwrap();
    assert_eq!((finished.code(), value["exit_code"].as_i64()), (3, Some(3)));
    assert_eq!((value["stdout"].as_str(), value["stderr"].as_str()), (Some("a\u{fffd}b"), Some("e\n")));
    state.assert_nothing_left();
}

#[test]
fn files_go_in_and_come_back() {
    let state = StateDir::new(BINARY);
    let files = tempfile::tempdir().unwrap();
    std::fs::create_dir(files.path().join("sub")).unwrap();
    std::fs::write(files.path().join("sub/in\nline.txt"), "before").unwrap();
    let volume = format!("{}:/workspace/data", files.path().display());
    state
        .isopod()
        .run(&[
            "run",
            "-v",
            &volume,
            "--",
            "sh",
            "-c",
            "cd /workspace/data && cat sub/* > out.txt && ln -s /etc/passwd link",
        ])
        .ok();
    assert_eq!(std::fs::read_to_string(files.path().join("out.txt")).unwrap(), "before");
    assert!(!files.path().join("link").exists(), "a link is not followed out of the sandbox");
    state.assert_nothing_left();
}

/// The directory may be a stranger's: what its links lead to is neither read nor written.
#[test]
fn links_of_a_volume_lead_nowhere_outside() {
    use std::os::unix::fs::symlink;
    let state = StateDir::new(BINARY);
    let top = tempfile::tempdir().unwrap();
    let (repo, outside) = (top.path().join("repo"), top.path().join("outside"));
    std::fs::create_dir_all(repo.join("bin")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "hush-hush").unwrap();
    std::fs::write(repo.join("tool"), "tool").unwrap();
    symlink("../tool", repo.join("bin/tool")).unwrap();
    symlink(&outside, repo.join("out")).unwrap();
    symlink(outside.join("secret"), repo.join("key")).unwrap();
    let volume = format!("{}:/w", repo.display());
    let command = "cd /w; grep -rl hush . ; cat bin/tool > seen; mkdir -p out; echo x > out/planted; echo y > key";
    let finished = state.isopod().run(&["run", "-v", &volume, "--", "sh", "-c", command]);
    assert_eq!(finished.stdout(), "", "nothing of the outside is inside");
    assert!(finished.stderr().contains("leads out of the directory"), "{}", finished.stderr());
    assert!(finished.stderr().contains("there is a link in its place"), "{}", finished.stderr());
    assert_ne!(finished.code(), 0, "not all of it came back");
    let listed: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, ["secret"]);
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "hush-hush");
    // What was named inside replaced the link; a link within the directory is still one.
    assert_eq!(std::fs::read_to_string(repo.join("key")).unwrap(), "y\n");
    assert_eq!(std::fs::read_to_string(repo.join("seen")).unwrap(), "tool");
    assert!(repo.join("bin/tool").is_symlink());
    state.assert_nothing_left();
}

#[test]
fn a_killed_run_leaves_nothing() {
    let state = StateDir::new(BINARY);
    let mut child = state.isopod().command(&["run", "--", "sleep", "1000"]).spawn().unwrap();
    let is_running = || {
        let homes = std::fs::read_dir(state.path().join("homes")).into_iter().flatten().flatten();
        homes
            .filter_map(|home| std::fs::read_dir(home.path().join("boxes")).ok())
            .any(|mut boxes| boxes.any(|entry| entry.unwrap().path().join("guest.sock").exists()))
    };
    while !is_running() {
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    state.assert_nothing_left();
}

#[test]
fn packages_can_be_installed_and_the_host_is_unchanged() {
    let state = StateDir::new(BINARY);
    let before = std::fs::read("/var/lib/dpkg/status").unwrap();
    let command =
        "sudo apt-get update -qq && sudo apt-get install -y -qq cowsay >/dev/null 2>&1 && /usr/games/cowsay ok";
    let output = state.isopod().run(&["run", "--", "sh", "-c", command]).ok();
    assert!(output.contains("< ok >"), "{output}");
    assert_eq!(std::fs::read("/var/lib/dpkg/status").unwrap(), before);
    assert!(!std::path::Path::new("/usr/games/cowsay").exists());
    state.assert_nothing_left();
}

/// This host has both services: the test tier installs them.
#[test]
fn services_of_the_host_can_be_installed_and_work() {
    let state = StateDir::new(BINARY);
    let script = "set -e
        sudo apt-get check -qq
        sudo apt-get update -qq
        sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server postgresql >/tmp/log 2>&1 || cat /tmp/log
        pgrep redis-server >/dev/null || sudo service redis-server start >/dev/null
        redis-cli ping
        sudo pg_ctlcluster --skip-systemctl-redirect $(ls /etc/postgresql) main status >/dev/null ||
            sudo service postgresql start >/dev/null
        cd /tmp && sudo -u postgres psql -tAc 'select 6 * 7'
        sudo su - postgres -c \"psql -tAc 'select 6 * 7'\"
        sudo apt-get check -qq";
    let withheld =
        std::process::Command::new("dpkg-query").args(["-W", "redis-server", "postgresql"]).output().unwrap();
    assert!(withheld.status.success(), "apt-get install redis-server postgresql");
    let known =
        state.isopod().run(&["run", "--", "sh", "-c", "dpkg-query -W -f '${Status}' redis-server || true"]).ok();
    assert!(!known.contains("ok installed"), "it has no settings inside: {known}");
    assert_eq!(state.isopod().run(&["run", "--memory", "2G", "--", "bash", "-c", script]).ok(), "PONG\n42\n42\n");
    state.assert_nothing_left();
}

#[test]
fn programs_find_the_limits_of_their_sandbox() {
    let state = StateDir::new(BINARY);
    let limits = ["run", "--memory", "512M", "--cpu", "1", "--"];
    let read = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true";
    assert_eq!(state.isopod().run(&[&limits[..], &["sh", "-c", read]].concat()).ok().trim(), "536870912");
    let node = ["node", "-e", "console.log(process.constrainedMemory(), os.availableParallelism())"];
    assert_eq!(state.isopod().run(&[&limits[..], &node].concat()).ok().trim(), "536870912 1");
    let group = "cd /sys/fs/cgroup/memory 2>/dev/null || cd /sys/fs/cgroup; mkdir own";
    let refused = state.isopod().run(&["run", "-u", "root", "--", "sh", "-c", group]);
    assert!(refused.stderr().contains("Read-only file system"), "{}", refused.stderr());
    state.assert_nothing_left();
}
