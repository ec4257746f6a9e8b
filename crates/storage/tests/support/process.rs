//! A daemon in a separate process, so that it can be killed. It is this test program itself, started as a daemon.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The arguments of the daemon, one per line.
pub(crate) const ARGUMENTS: &str = "STORAGED_ARGUMENTS";

/// A daemon with its mounts. Everything is removed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    mounts: Vec<PathBuf>,
}

impl Process {
    /// Starts a daemon and waits for its mounts. `mounts` are `PATH[=EXECUTION[:QUOTA]]`.
    pub(crate) fn start(state: &Path, bucket: &str, mounts: &[String], environment: &[(&str, String)]) -> Self {
        let paths: Vec<PathBuf> =
            mounts.iter().map(|mount| PathBuf::from(mount.split('=').next().expect("never empty"))).collect();
        for path in &paths {
            std::fs::create_dir_all(path).expect("a mount point");
        }
        let mut process = Self::spawn(state, bucket, mounts, environment, Stdio::piped());
        process.mounts = paths;
        process.wait_for("ready");
        process
    }

    /// Starts a daemon that serves a descriptor that is already mounted. `how` is `serve=…` or `take-over=…`.
    pub(crate) fn serve(state: &Path, bucket: &str, how: &str, fd: OwnedFd) -> Self {
        let mut process = Self::spawn(state, bucket, &[how.to_owned()], &[], Stdio::from(fd));
        process.wait_for("ready");
        process
    }

    fn spawn(state: &Path, bucket: &str, mounts: &[String], environment: &[(&str, String)], input: Stdio) -> Self {
        let mut arguments = vec![state.display().to_string(), bucket.to_owned()];
        arguments.extend_from_slice(mounts);
        let program = std::env::current_exe().expect("this test");
        let mut child = Command::new(program)
            .args(["--exact", "daemon_of_the_other_tests", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ARGUMENTS, arguments.join("\n"))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output, mounts: Vec::new() }
    }

    /// Waits until everything is uploaded.
    pub(crate) fn settle(&mut self) {
        writeln!(self.input.as_mut().expect("still open"), "settle").expect("the daemon listens");
        self.wait_for("settled");
    }

    /// Kills the daemon like a crash, and removes the dead mounts.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
        // From now on, the mount points may belong to another daemon.
        for mount in self.mounts.drain(..) {
            isopod_storage::unmount(&mount).expect("a mount can always be taken away");
        }
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("the daemon talks") > 0 {
            if line.trim_end().ends_with(word) {
                return;
            }
            line.clear();
        }
        panic!("the daemon ended before it said {word}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        for mount in &self.mounts {
            let _ = isopod_storage::unmount(mount);
        }
        // It ends without mounts and input. If a test failed, it need not end cleanly.
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Whether mounts are possible here. Prints the reason if not.
pub(crate) fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(root && device) {
        super::skip("needs root and /dev/fuse");
    }
    root && device
}
