//! The workspace in real sandboxes: the same files at the same path as on the host, and nothing else of it.

use crate::served;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use isopod_testkit::{Finished, StateDir};
use served::{BINARY, Served};

/// Later servers must know it too.
const KEY: &str = "e2b_00000000000000000000000000000000000000aa";

/// A server with a workspace in a directory, which is also mounted on the host.
struct Stage {
    state: StateDir,
    places: tempfile::TempDir,
    server: Option<Served>,
}

impl Stage {
    fn start() -> Self {
        let mut stage = Self { state: StateDir::new(BINARY), places: tempfile::tempdir().unwrap(), server: None };
        stage.server = Some(stage.serve());
        stage.storage(&["mount"]).ok();
        stage
    }

    fn serve(&self) -> Served {
        self.serve_with(&[])
    }

    fn serve_with(&self, more: &[&str]) -> Served {
        let (bucket, base) = (self.bucket(), self.base());
        let options = [
            "--listen",
            "127.0.0.1:0",
            "--prepare",
            "none",
            "--api-key",
            KEY,
            "--storage",
            &bucket,
            "--storage-base-path",
            base.to_str().unwrap(),
        ];
        Served::start(&self.state, &[&options, more].concat())
    }

    fn bucket(&self) -> String {
        format!("dir:{}", self.places.path().join("bucket").display())
    }

    /// Where the workspace is on the host and in sandboxes.
    fn base(&self) -> PathBuf {
        self.places.path().join("base")
    }

    fn storage(&self, arguments: &[&str]) -> Finished {
        let mut command = self.state.isopod().command(&[&["storage"], arguments].concat());
        command.env("ISOPOD_STORAGE", self.bucket()).env("STORAGE_BASE_PATH", self.base());
        command.output().unwrap().into()
    }

    fn sandbox(&self, execution: &str) -> String {
        self.run(&["create", "--detach", "--metadata", &format!("execution_id={execution}")]).ok().trim().to_owned()
    }

    fn sh(&self, sandbox: &str, script: &str) -> Finished {
        self.run(&["exec", sandbox, "--", "bash", "-c", script])
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        self.command(arguments).output().unwrap().into()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.server.as_ref().unwrap().command(arguments);
        command.env("E2B_API_KEY", KEY);
        command
    }

    fn files(&self, execution: &str) -> PathBuf {
        self.base().join("executions").join(execution)
    }

    /// The process that serves.
    fn daemon(&self) -> u32 {
        self.status_number("pid")
    }

    /// The process that holds its connections.
    fn supervisor(&self) -> u32 {
        self.status_number("keeper")
    }

    fn status_number(&self, name: &str) -> u32 {
        let status: serde_json::Value = serde_json::from_str(&self.storage(&["status", "--json"]).ok()).unwrap();
        u32::try_from(status[name].as_u64().unwrap()).unwrap()
    }

    fn finish(mut self) {
        self.server.take().unwrap().stop();
        self.storage(&["stop"]).ok();
        self.state.assert_nothing_left();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // After a failure too: the mount must go before the directory that it is on.
        if self.server.take().is_some() {
            self.storage(&["stop", "--force"]);
        }
    }
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen");
}

#[test]
fn host_and_sandbox_share_the_files_of_an_execution_and_nothing_else() {
    let stage = Stage::start();
    let refused = stage.run(&["create", "--detach", "--metadata", "execution_id=../e2"]);
    assert!(refused.code() != 0, "an id that leads elsewhere");

    let (one, two) = (stage.sandbox("e1"), stage.sandbox("e2"));
    let place = stage.files("e1").display().to_string();
    stage
        .sh(
            &one,
            &format!("mkdir -p {place}/results && echo inside > {place}/results/a && chmod 640 {place}/results/a"),
        )
        .ok();
    assert_eq!(std::fs::read_to_string(stage.files("e1").join("results/a")).unwrap(), "inside\n");
    std::fs::write(stage.files("e1").join("b"), "from the host").unwrap();
    assert_eq!(stage.sh(&one, &format!("cat {place}/b; stat -c ' %a' {place}/results/a")).ok(), "from the host 640\n");
    // Appending, writing in the middle and renaming over another work on both sides.
    stage
        .sh(
            &one,
            &format!("cd {place} && echo more >> b && printf X | dd of=b bs=1 seek=0 conv=notrunc 2>&1 && mv b c"),
        )
        .ok();
    assert_eq!(std::fs::read_to_string(stage.files("e1").join("c")).unwrap(), "Xrom the hostmore\n");

    let above = Path::new(&place).parent().unwrap().display().to_string();
    assert_eq!(stage.sh(&one, &format!("ls {above}")).ok(), "e1\n");
    assert_eq!(stage.sh(&two, &format!("ls {above}; ls {above}/e2")).ok(), "e2\n", "nothing of the other one");
    stage.sh(&one, &format!("ln -s ../e2 {place}/other && ln -s / {place}/top")).ok();
    let followed = stage.sh(&one, &format!("ls -a {place}/other/ {place}/top/executions {place}/.. 2>&1; true")).ok();
    assert!(!followed.contains("e2"), "{followed}");

    let seen =
        stage.sh(&one, "grep fuse /proc/mounts; ls /dev/fuse 2>&1; env; cat /proc/*/environ 2>/dev/null; true").ok();
    assert!(seen.contains("fuse.isopod rw,nosuid,nodev"), "{seen}");
    assert!(
        seen.contains("cannot access '/dev/fuse'") && !seen.contains("AWS_ACCESS") && !seen.contains("AWS_SECRET"),
        "{seen}"
    );

    // Its own root can neither take the mount away nor make another.
    let tries =
        format!("umount {place}; umount -l {place}; mount -t fuse x /mnt -o fd=3; mount --bind {place} /mnt; true");
    stage.run(&["exec", "--user", "root", &one, "--", "bash", "-c", &tries]).ok();
    assert_eq!(stage.sh(&one, &format!("cat {place}/results/a; ls /mnt")).ok(), "inside\n");

    for sandbox in [&one, &two] {
        stage.run(&["kill", sandbox]).ok();
    }
    wait_until("the daemon's letting go", || !stage.storage(&["status"]).ok().contains("in sandbox"));
    stage.finish();
}

/// The quota of the settings holds for whoever writes, also in another life of the daemon.
#[test]
fn a_sandbox_cannot_write_beyond_the_quota_of_its_execution() {
    let mut stage = Stage { state: StateDir::new(BINARY), places: tempfile::tempdir().unwrap(), server: None };
    let settings = stage.places.path().join("settings.toml");
    std::fs::write(&settings, "[files]\nexecution_quota = \"1M\"\n").unwrap();
    stage.server = Some(stage.serve_with(&["--config", settings.to_str().unwrap()]));
    stage.storage(&["mount"]).ok();
    let (small, other) = (stage.sandbox("small"), stage.sandbox("other"));
    let place = stage.files("small").display().to_string();
    stage.sh(&small, &format!("head -c 900000 /dev/zero > {place}/a")).ok();
    let refused = stage.sh(&small, &format!("head -c 300000 /dev/zero > {place}/b"));
    assert!(refused.code() != 0 && refused.stderr().contains("Disk quota exceeded"), "{refused:?}");
    assert_eq!(stage.sh(&small, &format!("df --output=size -B1 {place} | tail -1")).ok().trim(), "1048576");
    stage.sh(&other, &format!("head -c 900000 /dev/zero > {}/a", stage.files("other").display())).ok();

    signal(stage.daemon(), rustix::process::Signal::KILL);
    let refused = stage.sh(&small, &format!("head -c 300000 /dev/zero > {place}/c"));
    assert!(refused.stderr().contains("Disk quota exceeded"), "after the death of the daemon: {refused:?}");
    stage.sh(&small, &format!("rm {place}/a && head -c 300000 /dev/zero > {place}/c && wc -c < {place}/c")).ok();
    for sandbox in [&small, &other] {
        stage.run(&["kill", sandbox]).ok();
    }
    stage.finish();
}

#[test]
fn mounts_outlive_pauses_servers_and_daemons() {
    let mut stage = Stage::start();
    let sandbox = stage.sandbox("run");
    let file = stage.files("run").join("f").display().to_string();
    stage.sh(&sandbox, &format!("echo 1 > {file}")).ok();

    stage.run(&["pause", &sandbox]).ok();
    stage.run(&["resume", &sandbox]).ok();
    assert_eq!(stage.sh(&sandbox, &format!("cat {file}")).ok(), "1\n", "after a pause");
    stage.run(&["pause", "--filesystem-only", &sandbox]).ok();
    stage.run(&["resume", &sandbox]).ok();
    assert_eq!(stage.sh(&sandbox, &format!("cat {file}")).ok(), "1\n", "in another life");

    // The supervisor has the connections: whoever waits meanwhile goes on.
    signal(stage.daemon(), rustix::process::Signal::KILL);
    stage.sh(&sandbox, &format!("echo 2 >> {file}")).ok();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "1\n2\n", "after the death of the daemon");

    let server = stage.server.take().unwrap();
    drop(server);
    stage.server = Some(stage.serve());
    assert_eq!(stage.sh(&sandbox, &format!("cat {file}")).ok(), "1\n2\n", "after the death of the server");

    // Nobody has them any more: the next server mounts anew.
    let daemon = stage.daemon();
    signal(parent(daemon), rustix::process::Signal::KILL);
    signal(daemon, rustix::process::Signal::KILL);
    let server = stage.server.take().unwrap();
    drop(server);
    stage.server = Some(stage.serve());
    assert_eq!(stage.sh(&sandbox, &format!("cat {file}")).ok(), "1\n2\n", "after the death of all");
    stage.storage(&["mount"]).ok();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "1\n2\n", "a dead mount of the host is replaced");
    stage.run(&["kill", &sandbox]).ok();
    stage.finish();
}

/// The daemon starts another supervisor, which does all that the first one did.
#[test]
fn a_dead_supervisor_is_replaced_and_costs_no_mount_and_no_waiting_call() {
    let stage = Stage::start();
    let sandbox = stage.sandbox("kept");
    let file = stage.files("kept").join("f").display().to_string();
    stage.sh(&sandbox, &format!("echo 1 > {file}")).ok();
    for round in 0..2 {
        let (daemon, supervisor) = (stage.daemon(), parent(stage.daemon()));
        signal(supervisor, rustix::process::Signal::KILL);
        wait_until("another supervisor", || stage.supervisor() != supervisor);
        assert_eq!(stage.daemon(), daemon, "the daemon goes on, round {round}");
        // Somebody waits for an answer while the daemon dies.
        signal(daemon, rustix::process::Signal::STOP);
        let script = format!("echo begun; cat {file}; echo {round} >> {file}; cat {file}");
        let mut waiting = stage.command(&["exec", &sandbox, "--", "bash", "-c", &script]);
        let mut waiting = waiting.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = std::io::BufReader::new(waiting.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert_eq!(line, "begun\n");
        signal(daemon, rustix::process::Signal::KILL);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
        assert!(waiting.wait().unwrap().success() && rest.ends_with(&format!("{round}\n")), "round {round}: {rest:?}");
        assert!(std::fs::read_to_string(&file).unwrap().ends_with(&format!("{round}\n")), "on the host, round {round}");
    }
    stage.run(&["kill", &sandbox]).ok();
    stage.finish();
}

/// Nobody holds the connections any more: the server that runs notices, and mounts anew.
#[test]
fn mounts_come_back_by_themselves_when_daemon_and_supervisor_die_together() {
    let stage = Stage::start();
    let sandboxes = [stage.sandbox("a"), stage.sandbox("b")];
    let files = ["a", "b"].map(|name| stage.files(name).join("f").display().to_string());
    for (sandbox, file) in sandboxes.iter().zip(&files) {
        stage.sh(sandbox, &format!("echo kept > {file}")).ok();
    }
    let daemon = stage.daemon();
    signal(parent(daemon), rustix::process::Signal::KILL);
    signal(daemon, rustix::process::Signal::KILL);
    for (sandbox, file) in sandboxes.iter().zip(&files) {
        wait_until("the mount's coming back", || stage.sh(sandbox, &format!("cat {file}")).stdout() == "kept\n");
        stage.run(&["kill", sandbox]).ok();
    }
    // That of the host has no server that would look after it; asking for it replaces what is left of it.
    stage.storage(&["mount"]).ok();
    assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), "kept\n");
    stage.finish();
}

/// A daemon that does not answer must not keep a sandbox from ending.
#[test]
fn a_sandbox_ends_while_its_calls_are_not_answered() {
    let stage = Stage::start();
    let sandbox = stage.sandbox("stuck");
    let place = stage.files("stuck").display().to_string();
    stage.sh(&sandbox, &format!("echo 1 > {place}/f")).ok();
    let daemon = stage.daemon();
    signal(daemon, rustix::process::Signal::STOP);
    // Two kinds of waiting: one that a signal ends, and one that it does not.
    let script = format!(
        "python3 -c \"import os; os.setxattr('{place}/f', 'user.a', b'1')\" & (sleep 1.2; cat {place}/f) & echo begun; wait"
    );
    let mut stuck = stage.command(&["exec", &sandbox, "--", "bash", "-c", &script]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let paused = stage.run(&["pause", &sandbox]);
    let ended = stage.run(&["kill", &sandbox]);
    signal(daemon, rustix::process::Signal::CONT);
    assert!(ended.code() == 0, "{ended:?} after {paused:?}");
    let _ = stuck.kill();
    stuck.wait().unwrap();
    stage.finish();
}
