//! `isopod storage` against a second S3 server (s3rver; the crate's own tests use moto), over http and https.

#[path = "../../../storage/tests/support/install.rs"]
mod install;
mod proxy;
#[path = "../../../storage/tests/support/rclone.rs"]
mod rclone;
mod s3rver;
use crate::{common, served};

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::has_criu;
use isopod_testkit::{Finished, StateDir};
use proxy::Proxy;
use rustix::process::Signal;
use s3rver::{ACCESS_KEY, BUCKET, S3rver, SECRET_KEY};
use served::{BINARY, Served};

/// One host with a state directory, and settings as a person would export them.
struct Host {
    state: StateDir,
    places: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Host {
    fn new(endpoint: &str) -> Self {
        let places = tempfile::tempdir().unwrap();
        let base = places.path().join("base");
        let settings = [
            ("ROMA_S3_BUCKET", BUCKET),
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            ("STORAGE_BASE_PATH", base.to_str().unwrap()),
        ];
        let variables = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { state: StateDir::new(BINARY), places, variables }
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    fn unset(mut self, name: &str) -> Self {
        self.variables.remove(name);
        self
    }

    fn base(&self) -> PathBuf {
        self.places.path().join("base")
    }

    fn storage(&self, arguments: &[&str]) -> Finished {
        let mut command = self.state.isopod().command(&[&["storage"], arguments].concat());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.envs(&self.variables).output().unwrap().into()
    }

    fn finish(self) {
        self.storage(&["stop"]).ok();
        self.state.assert_nothing_left();
    }
}

/// Answers everything as Amazon does when the bucket is elsewhere.
fn server_of_another_region() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let body = "<Error><Code>PermanentRedirect</Code></Error>";
            let head = "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-3\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    format!("http://{address}")
}

#[test]
fn each_kind_of_trouble_has_its_own_words() {
    let server = S3rver::start();
    let endpoint = server.endpoint();
    let doctor = |host: Host, word: &str| {
        let told = host.storage(&["doctor"]);
        assert_ne!(told.code(), 0, "{word}");
        let text = told.stdout() + &told.stderr();
        assert!(text.contains(word), "{word:?} is not in {text}");
        let refused = host.storage(&["mount"]);
        assert_ne!(refused.code(), 0, "{word}");
        host.storage(&["stop"]);
        host.state.assert_nothing_left();
    };
    doctor(Host::new(&endpoint).set("ROMA_S3_BUCKET", "nobodys"), "bucket missing");
    doctor(Host::new(&endpoint).set("AWS_ACCESS_KEY_ID", "nobodys"), "bad keys");
    doctor(Host::new(&server_of_another_region()), "wrong region: the bucket is in another region (eu-west-3)");
    doctor(Host::new("http://127.0.0.1:1"), "unreachable");
    let no_keys = Host::new(&endpoint).unset("AWS_ACCESS_KEY_ID").unset("AWS_SECRET_ACCESS_KEY");
    doctor(no_keys.set("HOME", "/nonexistent"), "no keys for the bucket");
    let full = Host::new(&endpoint);
    std::fs::create_dir_all(full.base()).unwrap();
    std::fs::write(full.base().join("stray"), "x").unwrap();
    doctor(full, "path mismatch");
    let good = Host::new(&endpoint);
    assert_eq!(good.storage(&["doctor"]).ok().matches("ok ").count(), 3);
}

#[test]
fn a_bucket_is_mounted_written_and_read_by_another_host_and_keys_stay_in_memory() {
    let server = S3rver::start();
    let host = Host::new(&server.endpoint());
    host.storage(&["mount"]).ok();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(mounts.contains(&format!("isopod {} fuse.isopod ", host.base().display())), "{mounts}");
    let run = host.base().join("executions/run");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("small"), "hello").unwrap();
    let big: Vec<u8> = (0..40_u32 << 20).map(|index| (index >> 7) as u8 ^ index as u8).collect();
    std::fs::write(run.join("big"), &big).unwrap();
    std::fs::rename(run.join("big"), run.join("moved")).unwrap();
    assert!(host.storage(&["status"]).ok().contains(&host.base().display().to_string()));
    host.storage(&["sync", "--wait"]).ok();

    let status: serde_json::Value = serde_json::from_str(&host.storage(&["status", "--json"]).ok()).unwrap();
    assert_eq!(status["sync"]["uploads"], 0);
    let daemon = status["pid"].as_u64().unwrap();
    for file in ["environ", "cmdline"] {
        let text = std::fs::read(format!("/proc/{daemon}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains(SECRET_KEY), "{file}");
    }
    let kept =
        Command::new("grep").args(["-rlF", SECRET_KEY, "--exclude-dir=mnt"]).arg(host.state.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "", "no file holds the key");

    // The other name of the bucket, and files that only the bucket has.
    let other = Host::new(&server.endpoint()).unset("ROMA_S3_BUCKET").set("S3_BUCKET_NAME", BUCKET);
    assert!(other.storage(&["ls", "executions/run"]).ok().contains("41943040"));
    let copy = other.places.path().join("copy");
    other.storage(&["cp", "store:executions/run/moved", copy.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read(copy).unwrap(), big);
    assert!(other.storage(&["du", "executions"]).ok().contains("41943045 bytes        2 files  run"));
    assert!(other.storage(&["gc"]).ok().contains("gave up 40 MiB"));
    // A part of the bucket is a workspace of its own.
    let part = Host::new(&server.endpoint()).set("ISOPOD_STORAGE", &format!("s3://{BUCKET}/executions/run"));
    assert!(part.storage(&["ls"]).ok().contains(" moved\n"));
    part.storage(&["cp", BINARY, "store:program"]).ok();
    part.storage(&["sync", "--wait"]).ok();
    let refused = part.storage(&["ls", "../x"]);
    assert!(refused.stderr().contains("is no path of the workspace"));

    host.storage(&["umount"]).ok();
    assert_eq!(std::fs::read_dir(host.base()).unwrap().count(), 0);
    part.finish();
    other.finish();
    host.finish();
}

/// What takes two scripts with goofys is one command, with goofys's tunables as plain flags or in a file;
/// a second time it changes nothing, and without a bucket there is a directory.
#[test]
fn mount_does_what_the_seeds_scripts_did_with_their_tunables() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = S3rver::start();
    let host = Host::new("http://127.0.0.1:1").unset("AWS_ENDPOINT_URL");
    let endpoint = server.endpoint();
    let tunables =
        ["--region", "us-east-1", "--endpoint", &endpoint, "--stat-cache-ttl", "0.2", "--type-cache-ttl", "5"];
    let modes = ["--max-idle-handles", "8", "--dir-mode", "0750", "--file-mode", "0640"];
    let mount = [&["mount"], &tunables[..], &modes[..]].concat();
    host.storage(&mount).ok();
    assert_eq!(std::fs::read_dir(host.base()).unwrap().count(), 1, "executions, and no file of the trying left");
    host.storage(&mount).ok();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert_eq!(mounts.matches(&format!(" {} fuse.isopod ", host.base().display())).count(), 1, "{mounts}");

    // What another tool writes has no modes of its own, and is seen within the shorter of the two times.
    server.write_as_another_tool("executions/theirs/a.txt", "theirs");
    let seen = host.base().join("executions/theirs/a.txt");
    wait_for(|| seen.exists());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&seen), mode(seen.parent().unwrap())), (0o640, 0o750));
    let refused = host.storage(&["mount", "--dir-mode", "0999"]);
    assert!(refused.stderr().contains("octal"), "{}", refused.stderr());
    host.finish();

    let plain = Host::new("http://127.0.0.1:1").unset("ROMA_S3_BUCKET");
    plain.storage(&["mount"]).ok();
    assert!(plain.base().join("executions").is_dir());
    plain.finish();
}

/// A server that checks signatures refuses a wrong secret, and that is told as bad keys, with TLS and without.
#[test]
fn wrong_secrets_are_told_as_bad_keys_by_a_server_that_checks_them() {
    let certificates = tempfile::tempdir().unwrap();
    rclone::make_certificates(certificates.path());
    let authority = certificates.path().join("ca.pem");
    for server in [rclone::Rclone::start(), rclone::Rclone::start_with_tls(certificates.path())] {
        let host = |secret: &str| {
            Host::new(&server.endpoint())
                .set("ROMA_S3_BUCKET", rclone::BUCKET)
                .set("AWS_ACCESS_KEY_ID", rclone::ACCESS_KEY)
                .set("AWS_SECRET_ACCESS_KEY", secret)
                .set("SSL_CERT_FILE", authority.to_str().unwrap())
        };
        let wrong = host("wrong");
        let told = wrong.storage(&["doctor"]);
        assert!(told.code() != 0 && told.stdout().contains("bad keys"), "{}", told.stdout());
        wrong.storage(&["stop"]);
        let good = host(rclone::SECRET_KEY);
        assert_eq!(good.storage(&["doctor"]).ok().matches("ok ").count(), 3);
        good.storage(&["cp", BINARY, "store:program"]).ok();
        wait_for(|| std::fs::read(server.object("program")).is_ok_and(|bytes| bytes == std::fs::read(BINARY).unwrap()));
        good.finish();
    }
}

/// Keys that expire: nothing that was written is lost, and new keys in the file are enough.
#[test]
fn while_keys_are_expired_files_wait_and_renewed_keys_carry_them_up() {
    let server = S3rver::start();
    let host = Host::new(&server.endpoint()).unset("AWS_ACCESS_KEY_ID").unset("AWS_SECRET_ACCESS_KEY");
    let file = host.places.path().join("credentials");
    let host = host.set("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap());
    let write_keys = |access: &str, age: u64| {
        let text = format!("[default]\naws_access_key_id = {access}\naws_secret_access_key = {SECRET_KEY}\n");
        std::fs::write(&file, text).unwrap();
        let when = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(when).unwrap();
    };
    write_keys(ACCESS_KEY, 30);
    host.storage(&["mount"]).ok();
    write_keys("expired", 20);
    let path = host.base().join("executions/f");
    std::fs::write(&path, "kept").unwrap();
    wait_for(|| host.storage(&["status"]).ok().contains("trouble"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    write_keys(ACCESS_KEY, 10);
    host.storage(&["sync", "--wait"]).ok();
    let other = Host::new(&server.endpoint());
    assert!(other.storage(&["ls", "executions"]).ok().contains(" f\n"));
    other.finish();
    host.finish();
}

/// https with an authority of one's own, which only `SSL_CERT_FILE` names.
#[test]
fn a_server_with_tls_is_believed_only_by_its_authority() {
    let certificates = tempfile::tempdir().unwrap();
    rclone::make_certificates(certificates.path());
    let server = S3rver::start_with_tls(certificates.path());
    let stranger = Host::new(&server.endpoint()).set("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt");
    let told = stranger.storage(&["doctor"]);
    assert!(told.stdout().contains("unreachable"), "{}", told.stdout());
    let authority = certificates.path().join("ca.pem");
    let host = Host::new(&server.endpoint()).set("SSL_CERT_FILE", authority.to_str().unwrap());
    host.storage(&["mount"]).ok();
    std::fs::write(host.base().join("f"), "over tls").unwrap();
    host.storage(&["sync", "--wait"]).ok();
    host.finish();
}

/// The bucket does not answer, and calls of a sandbox wait for it: they hold up neither a pause nor the sandbox's end.
#[test]
fn calls_that_wait_for_the_bucket_hold_up_no_pause_no_kill_and_no_unmount() {
    let server = S3rver::start();
    let writer = Host::new(&server.endpoint());
    writer.storage(&["cp", BINARY, "store:executions/run/far"]).ok();
    writer.storage(&["sync", "--wait"]).ok();
    writer.finish();

    let proxy = Proxy::start(&server.endpoint());
    let host = Host::new(&proxy.endpoint());
    let mut command =
        host.state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "1", "--prepare", "none"]);
    let served = Served::start_command(&host.state, {
        command.envs(&host.variables);
        command
    });
    let sandbox = served.create(&["--metadata", "execution_id=run"]);
    let place = host.base().join("executions/run").display().to_string();
    let listed = served.run(&["exec", &sandbox, "--", "ls", &place]).ok();
    assert_eq!(listed, "far\n");
    host.storage(&["mount"]).ok();

    proxy.hang();
    let mut inside = served.command(&["exec", &sandbox, "--", "md5sum", &format!("{place}/far")]).spawn().unwrap();
    let far = host.base().join("executions/run/far");
    let outside = std::thread::spawn(move || std::fs::read(far).is_err());
    // Until both are in the daemon: what the kernel has not handed out yet would be easier to end. The daemon may also ask
    // for something else meanwhile, so the proxy alone can't tell.
    wait_for(|| proxy.held() >= 2 && waits_in_a_read("md5sum", &format!("{place}/far")));
    let paused = served.run(&["pause", &sandbox]);
    assert!(paused.stderr().contains("the sandbox, which keeps running"), "{}", paused.stderr());
    served.run(&["kill", &sandbox]).ok();
    let _ = inside.kill();
    inside.wait().unwrap();
    host.storage(&["umount"]).ok();
    assert!(outside.join().unwrap(), "whoever waits on the host gets an error");
    served.stop();
    host.finish();
}

/// Whether a program waits in a read of the file that is its only argument. Nobody else may have a file with this path.
fn waits_in_a_read(program: &str, file: &str) -> bool {
    let started = format!("{program}\0{file}\0");
    let mut processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|process| process.path());
    processes.any(|process| {
        let is_it = || Some(std::fs::read(process.join("cmdline")).ok()? == started.as_bytes());
        // Of a process that waits: the number of the call, which is 0 for a read, and the descriptor.
        let descriptor = || {
            let call = std::fs::read_to_string(process.join("syscall")).ok()?;
            let number = call.strip_prefix("0 0x")?.split(' ').next()?;
            u32::from_str_radix(number, 16).ok()
        };
        let opened = |number: u32| std::fs::read_link(process.join(format!("fd/{number}"))).ok();
        is_it() == Some(true) && descriptor().and_then(opened).is_some_and(|opened| opened == Path::new(file))
    })
}

/// A server whose workspace is a bucket behind a proxy that can be cut off, with two files that only the bucket has.
struct Cut {
    _store: S3rver,
    proxy: Proxy,
    host: Host,
    served: Option<Served>,
}

impl Cut {
    const KEY: &str = "e2b_00000000000000000000000000000000000000aa";

    fn start() -> Self {
        let store = S3rver::start();
        let writer = Host::new(&store.endpoint());
        for name in ["far", "unread"] {
            let file = writer.places.path().join(name);
            std::fs::write(&file, format!("{name}\n")).unwrap();
            writer.storage(&["cp", file.to_str().unwrap(), &format!("store:executions/run/{name}")]).ok();
        }
        writer.storage(&["sync", "--wait"]).ok();
        writer.finish();
        let proxy = Proxy::start(&store.endpoint());
        let host = Host::new(&proxy.endpoint());
        let mut cut = Self { _store: store, proxy, host, served: None };
        cut.serve();
        cut
    }

    fn serve(&mut self) {
        let options = ["--listen", "127.0.0.1:0", "--pool-ready", "1", "--prepare", "none", "--api-key", Self::KEY];
        let mut command = self.host.state.isopod().command(&[&["serve"], &options[..]].concat());
        command.envs(&self.host.variables);
        self.served = Some(Served::start_command(&self.host.state, command));
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = self.served.as_ref().unwrap().command(arguments);
        command.env("E2B_API_KEY", Self::KEY).output().unwrap().into()
    }

    fn create(&self, execution: &str) -> Finished {
        self.run(&["create", "--detach", "--metadata", &format!("execution_id={execution}")])
    }

    fn path(&self, execution: &str, name: &str) -> String {
        self.host.base().join("executions").join(execution).join(name).display().to_string()
    }

    fn sh(&self, sandbox: &str, script: &str) -> Finished {
        self.run(&["exec", sandbox, "--", "bash", "-c", script])
    }

    fn daemon(&self) -> u32 {
        let status: serde_json::Value = serde_json::from_str(&self.host.storage(&["status", "--json"]).ok()).unwrap();
        u32::try_from(status["pid"].as_u64().unwrap()).unwrap()
    }

    /// The first process of a sandbox.
    fn guest(&self, sandbox: &str) -> u32 {
        let boxes = std::fs::read_dir(self.host.state.path().join("homes/serve/boxes")).unwrap().flatten();
        let texts = boxes.filter_map(|entry| std::fs::read(entry.path().join("record.json")).ok());
        let mut records = texts.map(|text| serde_json::from_slice::<serde_json::Value>(&text).unwrap());
        let record = records.find(|record| record["spec"]["sandbox"] == sandbox).expect("it has a record");
        u32::try_from(record["init"]["pid"].as_u64().unwrap()).unwrap()
    }

    fn finish(mut self) {
        self.served.take().unwrap().stop();
        self.host.storage(&["stop"]).ok();
        self.host.state.assert_nothing_left();
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // After a failure: mounts must go before the directories that they are on.
        drop(self.served.take());
        self.host.storage(&["stop", "--force"]);
    }
}

fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A process that does nothing until this is dropped, also by a test that fails: what removes its things asks it.
struct Stopped(OwnedFd);

impl Stopped {
    fn new(pid: u32) -> Self {
        let process = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        let stopped = Self(rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap());
        signal(pid, Signal::STOP);
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = rustix::process::pidfd_send_signal(&self.0, Signal::CONT);
    }
}

/// Of a daemon that did not lose its first supervisor.
fn parent(pid: u32) -> u32 {
    stat(pid, 1).parse().unwrap()
}

/// As `ps` shows it.
fn state_of(pid: u32) -> String {
    stat(pid, 0)
}

/// A field of what the kernel says about a process, counted from behind its name.
fn stat(pid: u32, field: usize) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(field).unwrap().to_owned()
}

/// The daemon dies while its store is away: no mount is lost, and what is here can be read at once.
#[test]
fn a_daemon_that_dies_while_the_store_is_away_loses_no_mount() {
    let cut = Cut::start();
    let sandbox = cut.create("run").ok().trim().to_owned();
    assert_eq!(cut.sh(&sandbox, &format!("cat {}", cut.path("run", "far"))).ok(), "far\n");
    cut.proxy.hang();
    cut.sh(&sandbox, &format!("echo here > {}", cut.path("run", "near"))).ok();
    kill(cut.daemon());
    assert!(cut.host.storage(&["status"]).ok().contains("in sandbox"), "the mount is served again at once");
    assert_eq!(cut.sh(&sandbox, &format!("cat {}", cut.path("run", "near"))).ok(), "here\n", "what only we have");
    cut.proxy.recover();
    wait_for(|| cut.sh(&sandbox, &format!("cat {}", cut.path("run", "far"))).stdout() == "far\n");
    cut.host.storage(&["sync", "--wait"]).ok();
    cut.run(&["kill", &sandbox]).ok();
    cut.finish();
}

/// A guest that dies while something in its sandbox waits for the bucket cannot be gone before that is. The sandbox ends
/// all the same, and nothing of it waits on.
#[test]
fn a_sandbox_whose_guest_dies_while_the_store_hangs_ends_at_once() {
    let cut = Cut::start();
    let [sandbox, other] = [(); 2].map(|()| cut.create("run").ok().trim().to_owned());
    let far = cut.path("run", "far");
    cut.sh(&sandbox, &format!("ls {far}")).ok();
    cut.proxy.hang();
    let append = format!("echo more >> {far}");
    let start = |arguments: &[&str]| {
        let mut command = cut.served.as_ref().unwrap().command(arguments);
        command.env("E2B_API_KEY", Cut::KEY).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    let mut longer = start(&["exec", &other, "--", "bash", "-c", &append]);
    wait_for(|| cut.proxy.held() >= 1);
    // A process of the sandbox, and a thread of the guest's own.
    let inside = start(&["exec", &sandbox, "--", "bash", "-c", &append]);
    let through_the_guest = start(&["cp", &format!("{sandbox}:{far}"), "/dev/null"]);
    wait_for(|| cut.sh(&sandbox, "pgrep -f 'more >>'").code() == 0);
    kill(cut.guest(&sandbox));
    wait_for(|| cut.run(&["info", &sandbox]).code() != 0);
    assert!(longer.try_wait().unwrap().is_none(), "the store answered somebody who asked before");
    for mut client in [inside, through_the_guest] {
        assert!(!client.wait().unwrap().success(), "what it asked for is gone");
    }
    cut.run(&["kill", &other]).ok();
    longer.wait().unwrap();
    wait_for(|| !cut.host.storage(&["status"]).ok().contains("in sandbox"));
    cut.proxy.recover();
    cut.finish();
}

/// The store hangs, and the daemon with it: the next server listens, adopts the sandboxes and makes others before either of
/// the two has answered anybody. Then everything dies: the one after it mounts anew beside all that. A create that needs
/// the store is refused with the reason.
#[test]
fn a_server_that_starts_while_the_store_is_away_listens_and_brings_mounts_back() {
    let mut cut = Cut::start();
    let sandboxes: Vec<String> = ["run", "b", "c"].iter().map(|name| cut.create(name).ok().trim().to_owned()).collect();
    let far = format!("cat {}", cut.path("run", "far"));
    assert_eq!(cut.sh(&sandboxes[0], &far).ok(), "far\n");
    cut.proxy.hang();
    cut.sh(&sandboxes[0], &format!("echo here > {}", cut.path("run", "near"))).ok();
    let daemon = cut.daemon();
    drop(cut.served.take());
    let stopped = Stopped::new(daemon);
    cut.serve();
    for sandbox in &sandboxes {
        assert_eq!(cut.sh(sandbox, "echo adopted").ok(), "adopted\n");
    }
    cut.run(&["create", "--detach"]).ok();
    assert_eq!(state_of(daemon), "T", "whoever waited for the daemon waits still");
    kill(parent(daemon));
    kill(daemon);
    drop(stopped);
    drop(cut.served.take());
    cut.serve();
    for sandbox in &sandboxes {
        assert_eq!(cut.sh(sandbox, "echo adopted").ok(), "adopted\n");
    }
    let near = format!("cat {}", cut.path("run", "near"));
    wait_for(|| cut.sh(&sandboxes[0], &near).stdout() == "here\n");
    let refused = cut.create("new");
    assert!(
        refused.code() != 0 && refused.stderr().contains("the workspace is not available: its store cannot be reached"),
        "{}",
        refused.stderr()
    );
    // One that needs no files is none the worse.
    let plain = cut.run(&["create", "--detach"]).ok().trim().to_owned();
    cut.proxy.recover();
    wait_for(|| cut.sh(&sandboxes[0], &far).stdout() == "far\n");
    wait_for(|| cut.create("new").code() == 0);
    cut.host.storage(&["sync", "--wait"]).ok();
    cut.run(&["kill", "--all"]).ok();
    assert!(!plain.is_empty());
    cut.finish();
}

/// A save looks at descriptors without asking whoever serves them, so a bucket that does not answer costs it no time.
#[test]
fn a_bucket_that_hangs_holds_up_no_snapshot_and_no_fork() {
    if !has_criu() {
        return;
    }
    let cut = Cut::start();
    let sandbox = cut.create("run").ok().trim().to_owned();
    let far = cut.path("run", "far");
    cut.sh(&sandbox, &format!("ls {far}")).ok();
    let goes_on = || assert_eq!(cut.sh(&sandbox, "echo alive").ok(), "alive\n");
    let snapshot = || cut.run(&["snapshot", "create", &sandbox, "--name", "hangs"]);
    let fork = || cut.run(&["fork", &sandbox, "-n", "2"]);

    // The mount is there, and nothing on it is open.
    cut.proxy.hang();
    snapshot().ok();
    goes_on();
    cut.run(&["snapshot", "rm", "hangs"]).ok();
    let copies = fork();
    assert!(copies.code() == 0 || copies.stderr().contains("the workspace is not available"), "{}", copies.stderr());
    goes_on();
    cut.proxy.recover();
    wait_for(|| cut.sh(&sandbox, &format!("cat {far}")).stdout() == "far\n");

    // A descriptor that nobody uses.
    cut.sh(&sandbox, &format!("exec 3< {far}; sleep 1000 < /dev/null > /dev/null 2>&1 &")).ok();
    let refused = |told: Finished| {
        let is_named = told.stderr().contains("(sleep) has") && told.stderr().contains("on a volume or the workspace");
        assert!(told.code() != 0 && is_named, "{}", told.stderr());
        goes_on();
    };
    cut.proxy.hang();
    refused(snapshot());
    refused(fork());
    cut.sh(&sandbox, "pkill sleep").ok();

    // A process that waits for an answer, because nobody has read the file before.
    let read = cut.path("run", "unread");
    let mut waiting = cut.served.as_ref().unwrap().command(&["exec", &sandbox, "--", "cat", &read]);
    let mut waiting = waiting.env("E2B_API_KEY", Cut::KEY).stderr(std::process::Stdio::null()).spawn().unwrap();
    wait_for(|| cut.sh(&sandbox, "pgrep -f '^cat .*unread'").code() == 0);
    for told in [snapshot(), fork()] {
        assert!(told.code() == 0 || told.stderr().contains("cannot be saved"), "{}", told.stderr());
        goes_on();
    }
    cut.run(&["kill", "--all"]).ok();
    let _ = waiting.wait();
    cut.run(&["snapshot", "rm", "hangs"]);
    cut.proxy.recover();
    cut.finish();
}

/// What keeps the check of other tests honest: it sees the daemon and its supervisor, wherever the state directory is.
#[test]
fn the_check_for_leftovers_sees_the_daemon_and_its_supervisor() {
    let state = tempfile::tempdir().unwrap();
    assert!(!state.path().display().to_string().contains("isopod"), "its name must not help");
    let storage = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("--state-dir").arg(state.path()).arg("storage").args(arguments).env_remove("ISOPOD_STORAGE");
        Finished::from(command.output().unwrap())
    };
    storage(&["ls"]).ok();
    let status: serde_json::Value = serde_json::from_str(&storage(&["status", "--json"]).ok()).unwrap();
    let seen = format!("{:?}", isopod_testkit::Residue::of(state.path()));
    storage(&["stop", "--force"]).ok();
    for which in ["pid", "keeper"] {
        assert!(seen.contains(&format!("process {}: ", status[which])), "{which} is not in {seen}");
    }
    isopod_testkit::assert_nothing_left(state.path());
}

/// A server, a sandbox, a program and uploads each keep the daemon from being stopped, and are named.
#[test]
fn stop_refuses_while_something_uses_the_daemon_or_is_to_be_uploaded() {
    let mut cut = Cut::start();
    let sandbox = cut.create("run").ok().trim().to_owned();
    cut.host.storage(&["mount"]).ok();
    let refused = |host: &Host, word: &str| {
        let told = host.storage(&["stop", "--timeout", "1"]);
        let text = told.stdout() + &told.stderr();
        assert!(told.code() != 0 && text.contains(word) && text.contains("--force"), "{word:?} is not in {text}");
    };
    refused(&cut.host, "the server (process ");
    let said = cut.served.take().unwrap().stop_and_read();
    assert!(said.contains("The storage daemon keeps running") && said.contains("isopod storage stop"), "{said}");
    refused(&cut.host, "sandbox execution ");
    cut.serve();
    cut.run(&["kill", &sandbox]).ok();
    cut.served.take().unwrap().stop();

    let mut program = Command::new("sleep").arg("1000").current_dir(cut.host.base()).spawn().unwrap();
    refused(&cut.host, "a program works in ");
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(Path::new(&cut.path("run", "far")).exists(), "asking changed nothing");

    cut.proxy.hang();
    std::fs::write(cut.path("run", "near"), "here").unwrap();
    refused(&cut.host, "still to be uploaded: ");
    cut.proxy.recover();
    let stopped = cut.host.storage(&["stop"]).ok();
    assert!(stopped.contains("has ended"), "{stopped}");
    assert!(cut.host.storage(&["stop"]).ok().contains("does not run"));
    let other = Host::new(&cut.proxy.endpoint());
    assert!(other.storage(&["ls", "executions/run"]).ok().contains(" near\n"), "it was uploaded first");
    other.finish();
    cut.host.state.assert_nothing_left();
}

#[test]
fn a_daemon_that_nobody_uses_ends_by_itself() {
    let host = Host::new("http://127.0.0.1:1").unset("ROMA_S3_BUCKET");
    host.storage(&["mount", "--idle-exit", "0"]).ok();
    std::fs::write(host.base().join("executions/f"), "kept").unwrap();
    assert!(host.storage(&["status"]).ok().contains("kept by process"), "a mount of the host is a use");
    host.storage(&["umount"]).ok();
    wait_for(|| host.storage(&["status"]).code() != 0);
    host.state.assert_nothing_left();
    assert!(host.storage(&["ls", "executions"]).ok().contains(" f\n"), "and another one is started when it is needed");
    host.finish();
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it did not happen");
}
