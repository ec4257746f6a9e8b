//! A host's disk that fills up under a server: files that sandboxes have closed are kept, and everything goes on later.

use crate::common;

use std::path::PathBuf;
use std::process::Command;

use common::Server;
use isopod_client::guest::Guest;
use isopod_client::sandbox::{ApiError, NewSandbox};
use isopod_testkit::{Isopod, StateDir, assert_nothing_left};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// An ext4 of 1 GiB in a file, with the state directory on it.
struct SmallHost {
    place: StateDir,
}

impl SmallHost {
    fn new() -> Self {
        let place = StateDir::new(BINARY);
        let host = Self { place };
        let (file, path) = (host.place.path().join("host.ext4"), host.path());
        std::fs::create_dir(&path).unwrap();
        run("fallocate", &["-l", "1G", file.to_str().unwrap()]);
        run("mkfs.ext4", &["-q", "-m", "0", file.to_str().unwrap()]);
        run("mount", &["-o", "loop", file.to_str().unwrap(), path.to_str().unwrap()]);
        host
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("host")
    }

    fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    fn isopod(&self) -> Isopod {
        self.place.isopod().with_state(&self.state())
    }

    fn serve(&self) -> Server {
        Server::start(self.isopod().command(&["serve", "--pool-ready", "1", "--pool-prepared", "1"]))
    }

    /// Takes all that is left, as another program of the host would.
    fn fill(&self) -> PathBuf {
        let file = self.path().join("others");
        let script = "cat /dev/zero > $0; dd if=/dev/zero bs=512 >> $0; sync -f $0";
        Command::new("sh").args(["-c", script, file.to_str().unwrap()]).output().unwrap();
        file
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        // A test that failed left a server's mounts.
        let _ = self.isopod().command(&["uninstall", "--yes"]).output();
        run("umount", &["--lazy", self.path().to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes files until one fails, and says how many were closed without an error. Half of them were synced.
const WRITE: &str = r#"
import os, sys
count = int(open("count").read()) if os.path.exists("count") else 0
try:
    while True:
        with open(f"file-{count}", "wb") as file:
            file.write(count.to_bytes(8, "big") * 131072)
            if count % 2: file.flush(); os.fsync(file.fileno())
        count += 1
except OSError as error:
    os.path.exists(f"file-{count}") and os.remove(f"file-{count}")
    print(count, error.errno)
"#;

/// Reads them all from the device.
const CHECK: &str = r#"
import os, sys
for number in range(int(sys.argv[1])):
    with open(f"file-{number}", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == number.to_bytes(8, "big") * 131072, number
print("all there")
"#;

async fn write_until_full(guest: &Guest) -> u32 {
    let said = guest.run(format!("python3 -c '{WRITE}'").as_str()).await.unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let (count, errno) = said.trim().split_once(' ').unwrap_or_else(|| panic!("{said:?}"));
    assert!(matches!(errno, "28" | "122"), "no ENOSPC or EDQUOT, but {errno}");
    count.parse().unwrap()
}

async fn check(guest: &Guest, count: u32) {
    let said = guest.run(format!("python3 -c '{CHECK}' {count}").as_str()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "all there\n", "{}", String::from_utf8_lossy(&said.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_host_disk_loses_no_file_of_a_sandbox() {
    let host = SmallHost::new();
    let server = host.serve();
    let client = server.client();
    let [first, second] =
        [client.create(NewSandbox::new("base")).await.unwrap(), client.create(NewSandbox::new("base")).await.unwrap()];
    let [one, two] = [&first, &second].map(|sandbox| sandbox.guest().clone().with_user("user"));
    two.run("for i in 1 2 3; do echo $i > kept-$i; done").await.unwrap();

    let others = host.fill();
    let count = write_until_full(&one).await;
    assert!(count > 20, "only {count} files fit");
    check(&one, count).await;
    let refused = client.create(NewSandbox::new("base")).await;
    assert!(matches!(&refused, Err(ApiError::Unavailable { .. })), "{refused:?}");
    server.kill();

    std::fs::remove_file(others).unwrap();
    let server = host.serve();
    let client = server.client();
    let one = client.connect(first.id(), None).await.unwrap().guest().clone().with_user("user");
    let two = client.connect(second.id(), None).await.unwrap().guest().clone().with_user("user");
    check(&one, count).await;
    let third = loop {
        match client.create(NewSandbox::new("base")).await {
            Ok(sandbox) => break sandbox,
            Err(error) => assert!(matches!(&error, ApiError::Unavailable { .. }), "{error:?}"),
        }
    };
    let three = third.guest().clone().with_user("user");
    let more = write_until_full(&three).await;
    check(&three, more).await;
    check(&one, count).await;
    assert_eq!(two.run("cat kept-*").await.unwrap().stdout, b"1\n2\n3\n");
    one.run("rm -f file-*").await.unwrap();
    server.kill();

    let removed = host.isopod().run(&["uninstall", "--yes"]);
    assert_eq!(removed.code(), 0, "{}", removed.stderr());
    assert!(!host.state().exists());
    assert_nothing_left(&host.state());
}
