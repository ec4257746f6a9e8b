//! The store over S3 servers that check signatures: rclone's and moto's. The servers of the other tests do not check
//! them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

#[path = "../examples/storaged.rs"]
#[expect(dead_code, reason = "its `main` is for manual use")]
mod storaged;
mod support;

use std::sync::Arc;
use std::time::Duration;

use isopod_storage::{Content, Credentials, Metadata, ObjectStore as _, S3Settings, S3Store, StoreError, Sync, Vfs};
use support::model::{Model, Step, perform, snapshot};
use support::process::{ARGUMENTS, Process, can_mount};
use support::rclone::{ACCESS_KEY, BUCKET, Rclone, SECRET_KEY, make_certificates};
use support::server::Server;
use support::{Random, is_full_run, objects, quick, read_file, write_file};

/// Not a test: the daemon that `Process` starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is the daemon of the other tests"]
async fn daemon_of_the_other_tests() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    storaged::run(&arguments).await.expect("the daemon failed");
}

fn store(endpoint: &str, access_key: &str, secret_key: &str) -> Arc<S3Store> {
    let credentials =
        Credentials { access_key: access_key.to_owned(), secret_key: secret_key.to_owned(), session_token: None };
    let mut settings = S3Settings::new(BUCKET, "us-east-1", credentials);
    settings.endpoint = Some(endpoint.to_owned());
    settings.request_timeout = Duration::from_secs(20);
    Arc::new(S3Store::new(settings).unwrap())
}

async fn settle(sync: &Sync, vfs: &Vfs) {
    let settled = tokio::time::timeout(Duration::from_secs(120), sync.settle()).await;
    assert!(settled.is_ok(), "something is never uploaded: {:?}", vfs.sync_status());
}

async fn is_denied(store: &S3Store) -> bool {
    let written = store.put("k", Content::Bytes("x".into()), &Metadata::new()).await;
    let looked = store.check().await;
    matches!(written, Err(StoreError::Denied { .. })) && matches!(looked, Err(StoreError::Denied { .. }))
}

/// Makes every kind of request, with everything that is hard to sign: odd keys, metadata, parts, ranges, copies.
async fn speaks_well(store: &Arc<S3Store>, keys: &[&str]) {
    store.check().await.unwrap();
    let metadata = Metadata::from([("mode".to_owned(), "33188".to_owned()), ("mtime".to_owned(), "1.5".to_owned())]);
    for key in keys {
        store.put(key, Content::Bytes(key.as_bytes().to_vec().into()), &metadata).await.unwrap();
        let info = store.head(key).await.unwrap().unwrap();
        assert_eq!(info.metadata.as_ref().unwrap()["mode"], "33188", "{key}");
        assert_eq!(store.get(key, &info.tag, 1..info.size).await.unwrap(), key.as_bytes()[1..], "{key}");
        let copied = format!("copies/{key}");
        store.copy(&info, &copied, &metadata).await.unwrap();
        assert_eq!(store.head(&copied).await.unwrap().unwrap().size, info.size);
        store.delete(&copied).await.unwrap();
        assert_eq!(store.head(&copied).await.unwrap(), None);
    }
    let mut wanted: Vec<&str> = keys.to_vec();
    wanted.sort_unstable();
    assert_eq!(objects(&**store).await.into_keys().collect::<Vec<_>>(), wanted);
    let file = tempfile::tempfile().unwrap();
    let bytes = Random(4).bytes(18 << 20);
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    store.put("big", Content::File(Arc::new(file), bytes.len() as u64), &metadata).await.unwrap();
    let info = store.head("big").await.unwrap().unwrap();
    assert!(store.get("big", &info.tag, 0..info.size).await.unwrap() == bytes, "the parts make another file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rclone_takes_our_signatures_and_wrong_keys_are_told_as_such() {
    let server = Rclone::start();
    let endpoint = server.endpoint();
    assert!(is_denied(&store(&endpoint, ACCESS_KEY, "another secret")).await);
    assert!(is_denied(&store(&endpoint, "AKIANOBODY", SECRET_KEY)).await);
    let good = store(&endpoint, ACCESS_KEY, SECRET_KEY);
    speaks_well(&good, &["a b+c&d=e?f#g%41%", "dir/ü漢\"'", "trailing dot./z", "plain"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_keys_takes_any() {
    let server = Rclone::start_without_keys();
    speaks_well(&store(&server.endpoint(), "any", "any"), &["one", "two/three"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moto_takes_our_signatures_and_wrong_keys_are_told_as_such() {
    let Some((server, access_key, secret_key)) = Server::start_with_keys().await else { return };
    let endpoint = format!("http://{}", server.address);
    assert!(is_denied(&store(&endpoint, &access_key, "another secret")).await);
    assert!(is_denied(&store(&endpoint, "AKIANOBODY", &secret_key)).await);
    let good = store(&endpoint, &access_key, &secret_key);
    speaks_well(&good, &["a b+c&d=e?f#g%41%", "dir/", "dir/ü漢\"<>'", "trailing dot./z"]).await;
}

/// The same random calls as in `model.rs`. Not over rclone, which removes the `/` from the keys of directories.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_over_a_server_that_checks_signatures_give_what_the_model_gives() {
    let Some((server, access_key, secret_key)) = Server::start_with_keys().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let open = |state: &str| {
        let store = store(&format!("http://{}", server.address), &access_key, &secret_key);
        Vfs::open(store, quick(&directory.path().join(state))).unwrap()
    };
    let vfs = open("state");
    let sync = Sync::start(vfs.clone());
    let (mut random, mut model) = (Random(11), Model::default());
    for index in 0..if is_full_run() { 600 } else { 120 } {
        let step = Step::random(&mut random);
        let expected = model.apply(&step);
        let actual = perform(&vfs, &step).await;
        assert_eq!(actual.is_ok(), expected.is_ok(), "step {index}: {step:?}: {actual:?}");
    }
    assert!(snapshot(&vfs).await == model.entries, "the files differ");
    settle(&sync, &vfs).await;
    assert!(snapshot(&open("fresh")).await == model.entries, "the bucket differs");
}

/// The server is down, for a minute in a full run. What is written in the meantime is kept and uploaded afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_the_server_is_gone_goes_up_when_it_is_back() {
    let mut server = Rclone::start();
    let directory = tempfile::tempdir().unwrap();
    let vfs =
        Vfs::open(store(&server.endpoint(), ACCESS_KEY, SECRET_KEY), quick(&directory.path().join("state"))).unwrap();
    let sync = Sync::start(vfs.clone());
    write_file(&vfs, "before", b"1").await.unwrap();
    settle(&sync, &vfs).await;
    server.switch_off();
    let until = std::time::Instant::now() + Duration::from_secs(if is_full_run() { 60 } else { 3 });
    let mut written = 0;
    while std::time::Instant::now() < until {
        write_file(&vfs, &format!("meanwhile-{written}"), format!("{written}").as_bytes()).await.unwrap();
        written += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let status = vfs.sync_status();
    assert!(status.uploads >= written && status.error.is_some(), "the trouble is told: {status:?}");
    assert_eq!(read_file(&vfs, "before").await.unwrap(), b"1");
    server.switch_on();
    settle(&sync, &vfs).await;
    assert_eq!(std::fs::read(server.object("before")).unwrap(), b"1");
    for index in 0..written {
        let object = std::fs::read_to_string(server.object(&format!("meanwhile-{index}"))).unwrap();
        assert_eq!(object, index.to_string());
    }
}

/// https with a private certificate authority, and checked signatures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_tls_and_keys_is_written_and_read_through_a_mount() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    make_certificates(directory.path());
    let server = Rclone::start_with_tls(directory.path());
    let error = store(&server.endpoint(), ACCESS_KEY, SECRET_KEY).check().await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "a stranger's certificate: {error:?}");
    let mount = directory.path().join("mount");
    let environment = [
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("SSL_CERT_FILE", directory.path().join("ca.pem").display().to_string()),
    ];
    let mounts = [mount.display().to_string()];
    let bucket = format!("s3:{BUCKET}");
    let mut process = Process::start(&directory.path().join("state"), &bucket, &mounts, &environment);
    let bytes = Random(8).bytes(20 << 20);
    std::fs::write(mount.join("big"), &bytes).unwrap();
    process.settle();
    assert!(std::fs::read(server.object("big")).unwrap() == bytes);
    drop(process);
    let fresh = Process::start(&directory.path().join("fresh"), &bucket, &mounts, &environment);
    assert!(std::fs::read(mount.join("big")).unwrap() == bytes, "read back over TLS");
    drop(fresh);
}
