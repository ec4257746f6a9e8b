//! The store and the file system over a real S3 server, even if it responds incorrectly, late or not at all.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

#[path = "../examples/storaged.rs"]
#[expect(dead_code, reason = "its `main` is for manual use")]
mod storaged;
mod support;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use isopod_storage::{Content, FsError, Kind, ListRequest, Metadata, ObjectStore as _, S3Store, StoreError, Sync, Vfs};
use support::model::{Model, Step, perform, snapshot};
use support::process::{ARGUMENTS, Process, can_mount};
use support::server::{Proxy, Server, settings, store};
use support::{Random, make_directory, names, objects, quick, read_file, resolve, write_file};

/// Not a test: the daemon that `Process` starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is the daemon of the other tests"]
async fn daemon_of_the_other_tests() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    storaged::run(&arguments).await.expect("the daemon failed");
}

async fn put(store: &S3Store, key: &str, bytes: &[u8]) -> String {
    store.put(key, Content::Bytes(bytes.to_vec().into()), &Metadata::new()).await.unwrap()
}

#[tokio::test]
async fn a_bucket_that_is_not_there_and_a_server_that_is_not_there_are_told_apart() {
    let Some(server) = Server::start().await else { return };
    let mut wrong = settings(server.address);
    wrong.bucket = "nowhere".into();
    let error = S3Store::new(wrong).unwrap().check().await.unwrap_err();
    assert!(matches!(error, StoreError::NoBucket(_)), "{error:?}");
    let mut wrong = settings(server.address);
    wrong.endpoint = Some("http://127.0.0.1:1".into());
    let error = S3Store::new(wrong).unwrap().check().await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    let mut wrong = settings(server.address);
    wrong.endpoint = Some("ftp://somewhere".into());
    assert!(S3Store::new(wrong).is_err());
    store(server.address).check().await.unwrap();
}

#[tokio::test]
async fn objects_keep_bytes_metadata_and_odd_keys() {
    let Some(server) = Server::start().await else { return };
    let store = store(server.address);
    let keys = ["a b+c&d=e?f#g%41%", "dir/", "dir/ü漢\"<>'", "x//y", "trailing dot./z", "a%0Ab"];
    for key in keys {
        let metadata = Metadata::from([("mode".to_owned(), "33188".to_owned())]);
        store.put(key, Content::Bytes(key.to_owned().into()), &metadata).await.unwrap();
        let info = store.head(key).await.unwrap().unwrap();
        assert_eq!((info.size, info.metadata.unwrap()["mode"].as_str()), (key.len() as u64, "33188"));
        assert_eq!(store.get(key, &info.tag, 1..info.size).await.unwrap(), key.as_bytes()[1..]);
    }
    let mut wanted: Vec<&str> = keys.to_vec();
    wanted.sort_unstable();
    assert_eq!(objects(&*store).await.into_keys().collect::<Vec<_>>(), wanted);
    let shallow = ListRequest { shallow: true, ..ListRequest::default() };
    assert_eq!(store.list(&shallow).await.unwrap().prefixes, ["dir/", "trailing dot./", "x/"]);
    assert_eq!(store.head("nothing").await.unwrap(), None);
    store.delete("nothing").await.unwrap();

    let tag = put(&store, "changes", b"one").await;
    put(&store, "changes", b"two").await;
    let error = store.get("changes", &tag, 0..3).await.unwrap_err();
    assert!(matches!(error, StoreError::Changed(_)), "{error:?}");
}

#[tokio::test]
async fn listings_longer_than_a_page_are_whole() {
    let Some(server) = Server::start().await else { return };
    let store = store(server.address);
    for index in 0..25 {
        put(&store, &format!("p/{index:02}"), b"").await;
    }
    let mut request = ListRequest { prefix: "p/".into(), shallow: true, limit: Some(10), after: None };
    let mut found = Vec::new();
    loop {
        let page = store.list(&request).await.unwrap();
        found.extend(page.objects.into_iter().map(|object| object.key));
        match page.next {
            Some(next) => request.after = Some(next),
            None => break,
        }
    }
    assert_eq!(found.len(), 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_files_go_up_in_parts_and_come_back() {
    let Some(server) = Server::start().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = store(server.address);
    let vfs = Vfs::open(store.clone(), quick(&directory.path().join("state"))).unwrap();
    let sync = Sync::start(vfs.clone());
    let bytes = Random(7).bytes(40 << 20);
    write_file(&vfs, "big", &bytes).await.unwrap();
    sync.settle().await;
    let info = store.head("big").await.unwrap().unwrap();
    assert!(info.size == bytes.len() as u64 && info.tag.contains("-3"), "three parts: {}", info.tag);
    let fresh = Vfs::open(store, quick(&directory.path().join("fresh"))).unwrap();
    assert!(read_file(&fresh, "big").await.unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_other_tools_write_is_seen_and_read() {
    let Some(server) = Server::start().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = store(server.address);
    put(&store, "plain/deep/file", b"no markers, no metadata").await;
    let link = Metadata::from([("mode".to_owned(), (0o120_777).to_string())]);
    store.put("plain/link", Content::Bytes("deep/file".into()), &link).await.unwrap();
    let rclone = Metadata::from([("mtime".to_owned(), "1000000000.25".to_owned())]);
    store.put("timed", Content::Bytes("x".into()), &rclone).await.unwrap();
    put(&store, "plain//empty part", b"").await;
    put(&store, "both", b"an object").await;
    put(&store, "both/and", b"a prefix").await;

    let mut settings = quick(&directory.path().join("state"));
    settings.ttl = Duration::from_millis(50);
    let vfs = Vfs::open(store.clone(), settings).unwrap();
    assert_eq!(names(&vfs, "").await, ["both", "plain", "timed"]);
    assert_eq!(names(&vfs, "plain").await, ["deep", "link"]);
    assert_eq!(read_file(&vfs, "plain/deep/file").await.unwrap(), b"no markers, no metadata");
    let link = resolve(&vfs, "plain/link").await.unwrap();
    assert_eq!((link.kind, vfs.read_link(link.ino).await.unwrap()), (Kind::Symlink, b"deep/file".to_vec()));
    let timed = resolve(&vfs, "timed").await.unwrap();
    assert_eq!(timed.mtime.duration_since(std::time::UNIX_EPOCH).unwrap(), Duration::from_millis(1_000_000_000_250));
    assert_eq!(read_file(&vfs, "both/and").await.unwrap(), b"a prefix");

    put(&store, "plain/deep/file", b"replaced").await;
    put(&store, "plain/new", b"new").await;
    store.delete("timed").await.unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(read_file(&vfs, "plain/deep/file").await.unwrap(), b"replaced");
    assert_eq!(read_file(&vfs, "plain/new").await.unwrap(), b"new");
    assert!(matches!(resolve(&vfs, "timed").await, Err(FsError::NotFound)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_tools_find_plain_objects_under_plain_keys() {
    let Some(server) = Server::start().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = store(server.address);
    let vfs = Vfs::open(store.clone(), quick(directory.path())).unwrap();
    let sync = Sync::start(vfs.clone());
    make_directory(&vfs, "executions").await.unwrap();
    make_directory(&vfs, "executions/e1").await.unwrap();
    make_directory(&vfs, "executions/e1/empty").await.unwrap();
    write_file(&vfs, "executions/e1/result.json", b"{}").await.unwrap();
    sync.settle().await;
    let found = objects(&*store).await;
    let keys: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(keys, ["executions/", "executions/e1/", "executions/e1/empty/", "executions/e1/result.json"]);
    assert_eq!(found["executions/e1/result.json"], b"{}");
    let metadata = store.head("executions/e1/result.json").await.unwrap().unwrap().metadata.unwrap();
    assert_eq!((metadata["mode"].as_str(), metadata["uid"].as_str()), ("33188", "1000"));
}

/// The same random calls as in `model.rs`, over a server that fails a fifth of all requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_over_a_server_in_trouble_lose_nothing() {
    let Some(server) = Server::start().await else { return };
    let proxy = Proxy::start(server.address, 1).await;
    let directory = tempfile::tempdir().unwrap();
    let open = |state: &str| {
        let mut s3 = settings(proxy.address);
        s3.request_timeout = Duration::from_millis(700);
        let mut settings = quick(&directory.path().join(state));
        settings.deadline = Duration::from_secs(30);
        Vfs::open(Arc::new(S3Store::new(s3).unwrap()), settings).unwrap()
    };
    let vfs = open("state");
    let sync = Sync::start(vfs.clone());
    let (mut random, mut model) = (Random(5), Model::default());
    for index in 0..150 {
        proxy.fail(if index % 20 < 10 { 20 } else { 0 });
        let step = Step::random(&mut random);
        let expected = model.apply(&step);
        let actual = perform(&vfs, &step).await;
        assert_eq!(actual.is_ok(), expected.is_ok(), "step {index}: {step:?}: {actual:?}");
    }
    assert!(snapshot(&vfs).await == model.entries, "the files differ");
    sync.settle().await;
    proxy.fail(0);
    let fresh = open("fresh");
    assert!(snapshot(&fresh).await == model.entries, "the bucket differs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_gone_known_files_work_and_unknown_ones_fail_in_time() {
    let Some(server) = Server::start().await else { return };
    let proxy = Proxy::start(server.address, 2).await;
    let directory = tempfile::tempdir().unwrap();
    let mut s3 = settings(proxy.address);
    s3.request_timeout = Duration::from_millis(300);
    let mut settings = quick(directory.path());
    settings.deadline = Duration::from_secs(1);
    settings.ttl = Duration::from_millis(10);
    let vfs = Vfs::open(Arc::new(S3Store::new(s3).unwrap()), settings).unwrap();
    let sync = Sync::start(vfs.clone());
    put(&store(server.address), "cold/file", b"never read").await;
    write_file(&vfs, "known", b"before").await.unwrap();
    sync.settle().await;
    assert_eq!(names(&vfs, "").await, ["cold", "known"]);
    proxy.fail(100);
    tokio::time::sleep(Duration::from_millis(20)).await;
    write_file(&vfs, "made meanwhile", b"kept").await.unwrap();
    assert_eq!(read_file(&vfs, "known").await.unwrap(), b"before");
    let error = read_file(&vfs, "cold/file").await.unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::IO, "{error:?}");
    assert!(vfs.sync_status().uploads > 0);
    proxy.fail(0);
    sync.settle().await;
    assert_eq!(objects(&*store(server.address)).await["made meanwhile"], b"kept");
    assert_eq!(read_file(&vfs, "cold/file").await.unwrap(), b"never read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_in_the_middle_of_uploads_goes_on_with_them() {
    if !can_mount() {
        return;
    }
    let Some(server) = Server::start().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("mount");
    let environment = [
        ("AWS_ACCESS_KEY_ID", "test-key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test-secret".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://{}", server.address)),
    ];
    let mounts = [format!("{}=run", mount.display())];
    let start = || Process::start(&directory.path().join("state"), "s3:bucket", &mounts, &environment);
    let mut process = start();
    let big = Random(3).bytes(50 << 20);
    fs::write(mount.join("big"), &big).unwrap();
    for round in 0..4 {
        for index in 0..30 {
            fs::write(mount.join(format!("f{round}-{index}")), format!("{round} {index}")).unwrap();
        }
        // Do not wait, so that some files are uploaded, some are partly uploaded, and some are not.
        tokio::time::sleep(Duration::from_millis(round * 150)).await;
        process.kill();
        process = start();
    }
    assert!(fs::read(mount.join("big")).unwrap() == big);
    process.settle();
    drop(process);
    let found = objects(&*store(server.address)).await;
    assert!(found["executions/run/big"] == big);
    assert_eq!(found.keys().filter(|key| key.starts_with("executions/run/f")).count(), 120);
    assert_eq!(found["executions/run/f2-7"], b"2 7");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_needs_a_dead_server_ends_in_eio_and_holds_up_nobody() {
    if !can_mount() {
        return;
    }
    let Some(server) = Server::start().await else { return };
    let proxy = Proxy::start(server.address, 9).await;
    put(&store(server.address), "executions/run/cold", &[7; 100_000]).await;
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("mount");
    let environment = [
        ("AWS_ACCESS_KEY_ID", "test-key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test-secret".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://{}", proxy.address)),
        ("STORAGED_DEADLINE", "2".to_owned()),
        ("STORAGED_REQUEST_TIMEOUT", "60".to_owned()),
    ];
    let mounts = [format!("{}=run", mount.display())];
    let process = Process::start(&directory.path().join("state"), "s3:bucket", &mounts, &environment);
    fs::write(mount.join("local"), b"here").unwrap();
    assert_eq!(fs::metadata(mount.join("cold")).unwrap().len(), 100_000);
    proxy.hang();
    let cold = std::thread::spawn({
        let path = mount.join("cold");
        move || fs::read(path)
    });
    // While that call waits, the others do not.
    fs::write(mount.join("local"), b"again").unwrap();
    assert_eq!(fs::read(mount.join("local")).unwrap(), b"again");
    let error = cold.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    drop(process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3fs_reads_what_we_write_and_we_read_what_it_writes() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::process::Command;

    if !can_mount() {
        return;
    }
    assert!(Command::new("s3fs").arg("--version").output().is_ok(), "s3fs is needed: apt-get install s3fs");
    let Some(server) = Server::start().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let vfs = Vfs::open(store(server.address), quick(&directory.path().join("state"))).unwrap();
    let sync = Sync::start(vfs.clone());
    make_directory(&vfs, "ours").await.unwrap();
    write_file(&vfs, "ours/file", b"from us").await.unwrap();
    perform(&vfs, &Step::Chmod { path: "ours/file".into(), mode: 0o640 }).await.unwrap();
    perform(&vfs, &Step::Link { path: "ours/link".into(), target: b"file".to_vec() }).await.unwrap();
    sync.settle().await;

    let keys = directory.path().join("keys");
    fs::write(&keys, "test-key:test-secret").unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let options = format!("passwd_file={},url=http://{},use_path_request_style", keys.display(), server.address);
    let mounted = Command::new("s3fs").args(["bucket".as_ref(), theirs.as_os_str()]).args(["-o", &options]).status();
    assert!(mounted.unwrap().success());
    let check = || -> std::io::Result<()> {
        assert_eq!(fs::read(theirs.join("ours/file"))?, b"from us");
        assert_eq!(fs::metadata(theirs.join("ours/file"))?.permissions().mode(), 0o100_640);
        assert_eq!(fs::read_link(theirs.join("ours/link"))?, std::path::Path::new("file"));
        fs::create_dir(theirs.join("its"))?;
        fs::write(theirs.join("its/file"), b"from s3fs")?;
        fs::set_permissions(theirs.join("its/file"), fs::Permissions::from_mode(0o755))?;
        symlink("file", theirs.join("its/link"))
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    isopod_storage::unmount(&theirs).unwrap();
    checked.unwrap().unwrap();

    let fresh = Vfs::open(store(server.address), quick(&directory.path().join("fresh"))).unwrap();
    assert_eq!(read_file(&fresh, "its/file").await.unwrap(), b"from s3fs");
    assert_eq!(resolve(&fresh, "its/file").await.unwrap().mode, 0o755);
    let link = resolve(&fresh, "its/link").await.unwrap();
    assert_eq!(fresh.read_link(link.ino).await.unwrap(), b"file");
}
