//! Pulls over connections that break, from a small registry that ends its responses where a test wants.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use isopod_image::registry::{PullError, RegistrySettings, fetch, pull};
use isopod_image::{Digest, Reference, Store};

/// How the registry handles range requests for the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranges {
    Honoured,
    /// Sends the whole layer again, as a registry may.
    Ignored,
    /// Sends another range than the requested one, and says so.
    Wrong,
}

struct Registry {
    address: String,
    /// The requested ranges, in order.
    asked: Arc<Mutex<Vec<Option<u64>>>>,
}

/// `cuts` says how many bytes of each response for the layer are sent before the connection is cut. Later responses are
/// complete.
fn start(layer: Vec<u8>, cuts: Vec<usize>, ranges: Ranges) -> (Registry, Digest) {
    let config = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#.to_vec();
    let digest = Digest::of(&layer);
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
        "config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{}","size":{}}},
        "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{digest}","size":{}}}]}}"#,
        Digest::of(&config),
        config.len(),
        layer.len(),
    );
    let files = HashMap::from([
        ("/v2/team/app/manifests/latest".to_owned(), manifest.into_bytes()),
        (format!("/v2/team/app/blobs/{}", Digest::of(&config)), config),
        (format!("/v2/team/app/blobs/{digest}"), layer.clone()),
        ("/files/tool".to_owned(), layer),
    ]);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let log = Arc::clone(&asked);
    let blob = format!("/v2/team/app/blobs/{digest}");
    std::thread::spawn(move || {
        let mut cuts = cuts.into_iter();
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let (path, from) = read_request(&stream);
            let body = files.get(&path).cloned().unwrap_or_default();
            let is_blob = path == blob;
            if is_blob {
                log.lock().unwrap().push(from);
            }
            let cut = if is_blob { cuts.next() } else { None };
            answer(stream, &body, from, cut, if is_blob { ranges } else { Ranges::Ignored });
        }
    });
    (Registry { address, asked }, digest)
}

fn read_request(stream: &TcpStream) -> (String, Option<u64>) {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap().unwrap();
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let mut from = None;
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().ok();
        }
    }
    (path, from)
}

fn answer(mut stream: TcpStream, body: &[u8], from: Option<u64>, cut: Option<usize>, ranges: Ranges) {
    let (status, range, body) = match (from, ranges) {
        (Some(from), Ranges::Honoured) => {
            let from = from as usize;
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
            ("206 Partial Content", range, &body[from..])
        }
        (Some(_), Ranges::Wrong) => {
            let range = format!("Content-Range: bytes 0-{}/{}\r\n", body.len() - 1, body.len());
            ("206 Partial Content", range, body)
        }
        _ => ("200 OK", String::new(), body),
    };
    let head = format!("HTTP/1.1 {status}\r\n{range}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let sent = cut.map_or(body, |cut| &body[..cut.min(body.len())]);
    // The client may close the connection after it has received enough.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
}

fn settings(address: &str) -> RegistrySettings {
    let mirrors = [format!("docker.io=http://{address}"), format!("files.example=http://{address}/files")];
    RegistrySettings {
        mirrors: mirrors.iter().map(|text| text.parse().unwrap()).collect(),
        ..RegistrySettings::default()
    }
}

fn layer() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).collect()
}

async fn pulled(store: &Store, registry: &Registry) -> Result<Digest, PullError> {
    let reference: Reference = "team/app".parse().unwrap();
    pull(store, &reference, None, &settings(&registry.address), &|_| {}).await
}

#[tokio::test]
async fn a_pull_goes_on_where_the_connection_broke() {
    let (registry, digest) = start(layer(), vec![100_000, 0, 500_000], Ranges::Honoured);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    pulled(&store, &registry).await.unwrap();
    assert_eq!(std::fs::read(store.blob(&digest).unwrap()).unwrap(), layer());
    let asked = registry.asked.lock().unwrap().clone();
    assert_eq!(asked, [None, Some(100_000), Some(100_000), Some(600_000)]);
}

#[tokio::test]
async fn a_registry_that_knows_no_ranges_is_asked_for_the_whole() {
    for ranges in [Ranges::Ignored, Ranges::Wrong] {
        let (registry, digest) = start(layer(), vec![100_000], ranges);
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        pulled(&store, &registry).await.unwrap();
        assert_eq!(std::fs::read(store.blob(&digest).unwrap()).unwrap(), layer(), "{ranges:?}");
    }
}

#[tokio::test]
async fn the_next_pull_goes_on_and_what_was_spoilt_is_fetched_anew() {
    let (registry, digest) = start(layer(), Vec::new(), Ranges::Honoured);
    for (left, wanted) in [(layer()[..700_000].to_vec(), vec![Some(700_000)]), (vec![7; 5000], vec![Some(5000), None])]
    {
        registry.asked.lock().unwrap().clear();
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        std::fs::write(directory.path().join("partial").join(digest.digits()), &left).unwrap();
        pulled(&store, &registry).await.unwrap();
        assert_eq!(std::fs::read(store.blob(&digest).unwrap()).unwrap(), layer());
        assert_eq!(*registry.asked.lock().unwrap(), wanted);
        assert_eq!(std::fs::read_dir(directory.path().join("partial")).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn a_registry_that_always_breaks_off_is_given_up_and_what_came_is_kept() {
    let (registry, digest) = start(layer(), vec![10; 100], Ranges::Honoured);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let error = pulled(&store, &registry).await.unwrap_err();
    assert!(matches!(error, PullError::Unreachable { .. }), "{error}");
    assert!(store.blob(&digest).is_none());
    let kept = std::fs::metadata(directory.path().join("partial").join(digest.digits())).unwrap().len();
    assert_eq!(kept, 90);
}

#[tokio::test]
async fn two_pulls_of_the_same_layer_do_not_mix() {
    let (registry, digest) = start(layer(), vec![300_000], Ranges::Honoured);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (one, two) = tokio::join!(pulled(&store, &registry), pulled(&store, &registry));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(std::fs::read(store.blob(&digest).unwrap()).unwrap(), layer());
    assert_eq!(*registry.asked.lock().unwrap(), [None, Some(300_000)], "the second one waited for the first");
}

#[tokio::test]
async fn a_file_from_the_web_is_kept_by_its_hash_and_checked() {
    let (registry, digest) = start(layer(), Vec::new(), Ranges::Honoured);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let settings = settings(&registry.address);
    let url = "https://files.example/tool";
    let wrong = Digest::of(b"another");
    assert!(fetch(&store, url, Some(&wrong), 1 << 30, &settings).await.is_err());
    assert!(fetch(&store, url, None, 1000, &settings).await.is_err(), "it is larger");
    assert_eq!(std::fs::read_dir(directory.path().join("partial")).unwrap().count(), 0);
    let fetched = fetch(&store, url, Some(&digest), 1 << 30, &settings).await.unwrap();
    assert_eq!(std::fs::read(fetched.path).unwrap(), layer());
    // Now the store has the file.
    let offline = RegistrySettings { offline: true, ..settings };
    assert!(fetch(&store, url, Some(&digest), 1 << 30, &offline).await.is_ok());
    assert!(fetch(&store, url, None, 1 << 30, &offline).await.is_err());
}
