//! A host's disk that fills up under a server: files that sandboxes have closed are kept, and everything goes on later.

use crate::{common, memory, served};

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Server, has_criu};
use isopod_client::guest::{Guest, StartProcess};
use isopod_client::sandbox::{ApiError, ListSnapshots, NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::{Isopod, StateDir, assert_nothing_left};
use memory::{until, user_of};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use serde_json::Value;
use served::Served;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// An ext4 in a file, with the state directory on it.
struct SmallHost {
    place: StateDir,
}

impl SmallHost {
    fn new(size: &str) -> Self {
        let place = StateDir::new(BINARY);
        let host = Self { place };
        let (file, path) = (host.place.path().join("host.ext4"), host.path());
        std::fs::create_dir(&path).unwrap();
        run("fallocate", &["-l", size, file.to_str().unwrap()]);
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

    /// Gives back what was taken.
    fn empty(&self) {
        let _ = std::fs::remove_file(self.path().join("others"));
    }

    /// The record of a sandbox.
    fn record_of(&self, sandbox: &Sandbox) -> Value {
        let records = memory::executions_in(&self.state()).into_iter().map(|execution| memory::record(&execution));
        let is_its_own =
            |record: &Value| record["spec"]["sandbox"] == sandbox.id().as_str() && record["snapshot"].is_null();
        records.into_iter().find(is_its_own).unwrap()
    }

    /// Takes all that is left at once. Returns whether there was anything to take.
    fn reserve_all(&self) -> bool {
        self.reserve_all_but(0)
    }

    /// Takes all that is left at once, but this much.
    fn reserve_all_but(&self, bytes: u64) -> bool {
        let free = statvfs(self.path()).unwrap();
        let others = free.f_bavail.saturating_sub(bytes / free.f_frsize);
        let file = std::fs::File::create(self.path().join("others")).unwrap();
        // The file system needs some of it for itself.
        let sizes = [others, others.saturating_sub(1024), others / 2].map(|blocks| blocks * free.f_frsize);
        sizes.into_iter().any(|size| size > 0 && fallocate(&file, FallocateFlags::empty(), 0, size).is_ok())
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
    let host = SmallHost::new("1G");
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

/// Counts in memory, and has enough of it that a save takes a while.
const LARGE: &str = "exec python3 -c \"
import os, time
kept, n = os.urandom(300 << 20), 0
while True:
    n += 1
    open('/dev/shm/n.new', 'w').write(str(n)); os.rename('/dev/shm/n.new', '/dev/shm/n')
    time.sleep(0.01)\"";

async fn goes_on(sandbox: &Sandbox) {
    let count = async || {
        let read = user_of(sandbox).run("cat /dev/shm/n").await.ok()?;
        String::from_utf8(read.stdout.to_vec()).ok()?.parse::<u64>().ok()
    };
    let before = until("it counts", count).await;
    until("it counts on", async || count().await.filter(|now| *now > before)).await;
}

/// Fills the disk when CRIU has begun to write memory.
fn fill_during_a_save(host: &Arc<SmallHost>, ended: &Arc<AtomicBool>) -> std::thread::JoinHandle<bool> {
    let (host, ended) = (Arc::clone(host), Arc::clone(ended));
    std::thread::spawn(move || {
        let has_pages = |execution: PathBuf| execution.join("memory/images/pages-1.img").exists();
        let has_begun = || memory::executions_in(&host.state()).into_iter().any(has_pages);
        while !ended.load(Ordering::Relaxed) {
            if has_begun() {
                return host.reserve_all();
            }
        }
        false
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_while_memory_is_saved_costs_the_snapshot_and_nothing_else() {
    if !has_criu() {
        return;
    }
    let host = Arc::new(SmallHost::new("4G"));
    let server = Server::start(host.isopod().command(&["serve", "--prepare", "none", "--save-paused-after", "0"]));
    let client = server.client();
    let sandbox = memory::create(&client, "base").await;
    user_of(&sandbox).start(StartProcess::shell(LARGE)).await.unwrap();
    goes_on(&sandbox).await;
    let mut refused = 0;
    for _ in 0..5 {
        let ended = Arc::new(AtomicBool::new(false));
        let filling = fill_during_a_save(&host, &ended);
        let taken = sandbox.snapshot(&NewSnapshot::default()).await;
        ended.store(true, Ordering::Relaxed);
        let was_filled = filling.join().unwrap();
        goes_on(&sandbox).await;
        if let Err(error) = &taken {
            assert!(was_filled, "{error}");
            refused += 1;
            // There is no room for this either, and it says so, unless there is not even room to record it.
            let again = sandbox.snapshot(&NewSnapshot::default()).await.unwrap_err().to_string();
            let is_said = ["there is no space", "the database cannot be used"].iter().any(|said| again.contains(said));
            assert!(is_said, "{again}");
        }
        std::fs::remove_file(host.path().join("others")).unwrap();
        let listed = client.list_snapshots(&ListSnapshots::default()).await.unwrap();
        assert_eq!(listed.len(), usize::from(taken.is_ok()));
        for snapshot in listed {
            assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
        }
        let left = memory::executions_in(&host.state());
        assert!(!left.iter().any(|execution| execution.join("memory").exists()), "{left:?}");
    }
    assert!(refused > 0, "the disk was never full in time");
    let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
    let copy = client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
    goes_on(&copy).await;
    goes_on(&sandbox).await;
    server.kill();

    let removed = host.isopod().run(&["uninstall", "--yes"]);
    assert_eq!(removed.code(), 0, "{}", removed.stderr());
    assert_nothing_left(&host.state());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_during_a_fork_costs_copies_and_nothing_else() {
    if !has_criu() {
        return;
    }
    let host = Arc::new(SmallHost::new("4G"));
    let server = Server::start(host.isopod().command(&["serve", "--prepare", "none", "--save-paused-after", "0"]));
    let client = server.client();
    let sandbox = memory::create(&client, "base").await;
    user_of(&sandbox).start(StartProcess::shell(LARGE)).await.unwrap();
    goes_on(&sandbox).await;
    let mut refused = 0;
    for _ in 0..5 {
        let ended = Arc::new(AtomicBool::new(false));
        let filling = fill_during_a_save(&host, &ended);
        let forked = sandbox.fork(2, Some(Duration::from_secs(300))).await;
        ended.store(true, Ordering::Relaxed);
        let was_filled = filling.join().unwrap();
        goes_on(&sandbox).await;
        host.empty();
        let copies = forked.unwrap_or_else(|error| vec![Err(error)]);
        for copy in copies {
            match copy {
                Ok(copy) => {
                    goes_on(&copy).await;
                    assert!(copy.kill().await.unwrap());
                }
                Err(error) => {
                    assert!(was_filled, "{error}");
                    refused += 1;
                }
            }
        }
        assert_eq!(client.list_snapshots(&ListSnapshots::default()).await.unwrap(), []);
        until("nothing of it is left", async || {
            let left = memory::executions_in(&host.state());
            (!left.iter().any(|execution| execution.join("memory").exists())).then_some(())
        })
        .await;
    }
    assert!(refused > 0, "the disk was never full in time");
    for copy in sandbox.fork(2, Some(Duration::from_secs(300))).await.unwrap() {
        goes_on(&copy.unwrap()).await;
    }
    goes_on(&sandbox).await;
    server.kill();

    let removed = host.isopod().run(&["uninstall", "--yes"]);
    assert_eq!(removed.code(), 0, "{}", removed.stderr());
    assert_nothing_left(&host.state());
}

/// It is refused for now, as everything is that has to be written down.
#[track_caller]
fn assert_refused_for_now(error: &ApiError) {
    assert!(matches!(error, ApiError::Conflict { .. } | ApiError::Unavailable { .. }), "{error:?}");
}

/// Waits until the server has saved the memory of a paused sandbox, or has given up. Returns whether it is saved.
async fn is_saved(served: &Served, told: usize) -> bool {
    until("it is saved or refused", async || {
        let log = served.log()[told..].to_owned();
        let said = |words: &str| log.contains(&format!("{words} the memory of a paused sandbox"));
        if said("could not save") {
            assert!(log.to_lowercase().contains("space"), "{log}");
            return Some(false);
        }
        said("saved").then_some(true)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_costs_no_sandbox_its_memory_at_a_pause_a_resume_a_copy_or_a_rollback() {
    if !has_criu() {
        return;
    }
    let host = Arc::new(SmallHost::new("4G"));
    let options = ["--listen", "127.0.0.1:0", "--prepare", "none", "--save-paused-after", "1"];
    let served = Served::start_command(&host.place, host.isopod().command(&[&["serve"], &options[..]].concat()));
    let client = served.client();
    let sandbox = memory::create(&client, "base").await;
    user_of(&sandbox).start(StartProcess::shell(LARGE)).await.unwrap();
    goes_on(&sandbox).await;

    // It fills up before the memory is saved, and then while it is. A pause is written down, which takes some.
    assert!(host.reserve_all_but(64 << 20));
    let told = served.log().len();
    sandbox.pause(true).await.unwrap();
    assert!(!is_saved(&served, told).await);
    assert_eq!(host.record_of(&sandbox)["state"], "frozen");
    client.connect(sandbox.id(), None).await.unwrap();
    goes_on(&sandbox).await;
    host.empty();
    let mut refused = 0;
    for _ in 0..5 {
        let (ended, told) = (Arc::new(AtomicBool::new(false)), served.log().len());
        let filling = fill_during_a_save(&host, &ended);
        sandbox.pause(true).await.unwrap();
        let saved = is_saved(&served, told).await;
        ended.store(true, Ordering::Relaxed);
        assert!(filling.join().unwrap() || saved, "nobody took its space");
        refused += usize::from(!saved);
        let left = memory::executions_in(&host.state());
        assert_eq!(left.iter().any(|execution| execution.join("memory").exists()), saved, "{left:?}");
        host.empty();
        client.connect(sandbox.id(), None).await.unwrap();
        goes_on(&sandbox).await;
    }
    assert!(refused > 0, "the disk was never full in time");

    // What is saved outlasts that nothing can be restored from it for now.
    let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
    user_of(&sandbox).write_file("later", "than the snapshot").await.unwrap();
    assert!(host.reserve_all());
    let created = client.create(NewSandbox::new(snapshot.id.clone())).await;
    match &created {
        Ok(copy) => goes_on(copy).await,
        Err(error) => assert_refused_for_now(error),
    }
    let rolled_back = sandbox.rollback(&snapshot.id).await;
    if let Err(error) = &rolled_back {
        assert_refused_for_now(error);
    }
    goes_on(&sandbox).await;
    let later = user_of(&sandbox).run("test -e later").await.unwrap().ended.exit_code == 0;
    assert_eq!(later, rolled_back.is_err());
    host.empty();
    if let Ok(copy) = created {
        assert!(copy.kill().await.unwrap());
    }
    sandbox.rollback(&snapshot.id).await.unwrap();
    goes_on(&sandbox).await;

    let told = served.log().len();
    sandbox.pause(true).await.unwrap();
    assert!(is_saved(&served, told).await);
    assert!(host.reserve_all());
    if let Err(error) = client.connect(sandbox.id(), None).await {
        assert_refused_for_now(&error);
        assert_eq!(host.record_of(&sandbox)["state"], "saved");
        host.empty();
        client.connect(sandbox.id(), None).await.unwrap();
    }
    goes_on(&sandbox).await;
    host.empty();
    let copy = client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
    goes_on(&copy).await;
    drop(served);

    let removed = host.isopod().run(&["uninstall", "--yes"]);
    assert_eq!(removed.code(), 0, "{}", removed.stderr());
    assert_nothing_left(&host.state());
}
