//! Pulls images from registries: manifest, config and layers. Each is verified by its hash, and each continues where an
//! earlier pull stopped.
//!
//! An internal address (of this machine or its private network) is contacted only if the settings name it. Otherwise
//! anyone who can build templates could make the server send requests to its neighbours. See `isopod_outbound`.

mod auth;
mod blob;
mod ecr;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
#[cfg(test)]
mod hostile;
mod http;

use std::time::Duration;

use ::http::header::ACCEPT;
use ::http::{HeaderMap, HeaderValue};
use isopod_outbound::Policy;

pub use auth::Credentials;
pub use ecr::{AwsKeys, ecr_credentials};
pub use fetch::{FetchError, Fetched, fetch};

use crate::manifest::{ACCEPTED, Found, parse};
use crate::store::{MAX_TEXT, Store, StoreError};
use crate::{Digest, Reference};
use auth::Session;

/// How to find registries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Alternative locations. The one with the longest matching name is tried first, and the original name last.
    pub mirrors: Vec<Mirror>,
    /// Whether to contact no registry at all.
    pub offline: bool,
    /// Which addresses may be contacted, besides those of mirrors.
    pub outbound: Policy,
}

/// An alternative location for names with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The prefix, for example `docker.io` or `docker.io/library`.
    pub from: String,
    /// The location, for example `mirror.example:5000/hub`.
    pub to: String,
    /// Whether to connect without TLS.
    pub plain: bool,
}

/// The text is not a valid mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid mirror: use name=location, such as docker.io=https://mirror.example")]
pub struct MirrorError(String);

impl std::str::FromStr for Mirror {
    type Err = MirrorError;

    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let wrong = || MirrorError(text.to_owned());
        let (from, to) = text.split_once('=').ok_or_else(wrong)?;
        let (to, plain) = match (to.strip_prefix("http://"), to.strip_prefix("https://")) {
            (Some(to), _) => (to, true),
            (None, Some(to)) => (to, false),
            (None, None) => (to, false),
        };
        let (from, to) = (from.trim().trim_matches('/'), to.trim().trim_matches('/'));
        if from.is_empty() || to.is_empty() || from.contains(char::is_whitespace) || to.contains(char::is_whitespace) {
            return Err(wrong());
        }
        Ok(Self { from: from.to_owned(), to: to.to_owned(), plain })
    }
}

/// Why an image could not be pulled. The received data is kept for the next attempt.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The settings forbid it.
    #[error("no registry may be contacted, because `offline` is among the registry mirrors")]
    Offline,
    /// An internal address that the settings do not name.
    #[error(
        "the registry {0} leads to an internal address; the operator can name it as a mirror or allow it with --allow-outbound"
    )]
    Internal(String),
    /// The registry does not respond.
    #[error("the registry {registry} cannot be reached: {reason}")]
    Unreachable {
        /// The host of the registry.
        registry: String,
        reason: String,
    },
    /// The registry requires credentials, or refuses the given ones.
    #[error("the registry {0} refuses access: the user name and password are wrong or missing")]
    Denied(String),
    #[error("the registry has no {0}")]
    NotFound(String),
    /// The response is unexpected.
    #[error("unexpected response from the registry {registry}: {what}")]
    Answer {
        /// The host of the registry.
        registry: String,
        what: String,
    },
    /// The region is not valid.
    #[error("{0:?} is not a valid AWS region")]
    Region(String),
    /// The image exceeds the limit.
    #[error("the image has {0} bytes, but the maximum is {MAX_IMAGE}")]
    TooLarge(u64),
    /// There is not enough disk space.
    #[error("the image needs {wanted} more bytes, but the server's disk has room for only {room}")]
    NoRoom {
        /// The number of missing bytes.
        wanted: u64,
        /// The free space, without the reserve.
        room: u64,
    },
    /// The registry has the image only for other platforms.
    #[error("{0} is not available for this machine's platform")]
    Platform(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The progress of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub message: String,
}

/// The maximum compressed size of an image. It is as large as an unpacked image may be, see [`crate::unpack::Bounds`].
const MAX_IMAGE: u64 = 64 << 30;

/// How long an exchange may take without receiving a byte.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// One location where an image may be.
#[derive(Clone, Debug)]
struct Place {
    reference: Reference,
    plain: bool,
    /// Whether the settings name it.
    is_named: bool,
}

/// Pulls an image into the store and adds its name there. Returns the digest of its manifest.
///
/// # Errors
/// If no location has it. The error is that of the last location.
pub async fn pull(
    store: &Store,
    reference: &Reference,
    credentials: Option<&Credentials>,
    settings: &RegistrySettings,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Digest, PullError> {
    if settings.offline {
        return Err(PullError::Offline);
    }
    let _adding = store.adding()?;
    let mut last = PullError::Offline;
    for place in places(reference, settings) {
        progress(Progress { message: format!("asking {} for {}", place.reference.registry(), place.reference) });
        match pull_from(store, &place, credentials, &settings.outbound, progress).await {
            Ok(digest) => {
                store.tag(reference, &digest)?;
                return Ok(digest);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl RegistrySettings {
    /// The mirrors of a name, the longest prefix first, each with the rest of the name.
    fn mirrors_of<'a>(&'a self, name: &'a str) -> Vec<(&'a Mirror, &'a str)> {
        let rest_of = |mirror: &'a Mirror| {
            let rest = name.strip_prefix(&mirror.from)?;
            (rest.is_empty() || rest.starts_with('/')).then_some((mirror, rest))
        };
        let mut fitting: Vec<_> = self.mirrors.iter().filter_map(rest_of).collect();
        fitting.sort_by_key(|(mirror, _)| std::cmp::Reverse(mirror.from.len()));
        fitting
    }
}

fn places(reference: &Reference, settings: &RegistrySettings) -> Vec<Place> {
    let whole = format!("{}/{}", reference.registry(), reference.repository());
    let moved = |(mirror, rest): &(&Mirror, &str)| {
        let target = format!("{}{rest}", mirror.to);
        let (registry, repository) = target.split_once('/')?;
        let reference = reference.moved_to(registry, repository);
        Some(Place { reference, plain: mirror.plain, is_named: true })
    };
    let mut places: Vec<Place> = settings.mirrors_of(&whole).iter().filter_map(moved).collect();
    if !places.iter().any(|place| place.reference == *reference) {
        places.push(Place { reference: reference.clone(), plain: false, is_named: false });
    }
    places
}

async fn pull_from(
    store: &Store,
    place: &Place,
    credentials: Option<&Credentials>,
    policy: &Policy,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Digest, PullError> {
    let mut session = Session::new(place, credentials, policy)?;
    let (digest, manifest) = session.manifest(store, place.reference.version()).await?;
    let parts = std::iter::once(&manifest.config).chain(&manifest.layers);
    // The manifest declares the sizes, so check them before downloading the first byte.
    let total = parts.clone().fold(0_u64, |sum, part| sum.saturating_add(part.size));
    if manifest.config.size > MAX_TEXT || total > MAX_IMAGE {
        return Err(PullError::TooLarge(total));
    }
    let missing: Vec<_> = parts.filter(|part| !store.has(&part.digest)).collect();
    let (wanted, room) = (missing.iter().map(|part| part.size).sum(), store.room());
    if wanted > room {
        return Err(PullError::NoRoom { wanted, room });
    }
    for part in missing {
        let megabytes = part.size.div_ceil(1 << 20);
        progress(Progress { message: format!("pulling {} ({megabytes} MB)", short(&part.digest)) });
        session.blob(store, part, progress).await?;
    }
    Ok(digest)
}

fn short(digest: &Digest) -> &str {
    &digest.digits()[..12]
}

impl Session<'_> {
    /// Downloads the manifest for this machine into the store.
    async fn manifest(
        &mut self,
        store: &Store,
        version: &str,
    ) -> Result<(Digest, crate::manifest::Manifest), PullError> {
        let bytes = self.manifest_bytes(version).await?;
        let found = match parse(&bytes).map_err(|error| self.nonsense(format!("an invalid manifest: {error}")))? {
            Found::Manifest(manifest) => (store.put(&bytes)?, manifest),
            Found::Index(index) => {
                let own = index.own().ok_or_else(|| PullError::Platform(self.place.reference.to_string()))?;
                let bytes = self.manifest_bytes(own.digest.as_str()).await?;
                match parse(&bytes).map_err(|error| self.nonsense(format!("an invalid manifest: {error}")))? {
                    Found::Manifest(manifest) => (store.put(&bytes)?, manifest),
                    Found::Index(_) => return Err(self.nonsense("an index inside an index".to_owned())),
                }
            }
        };
        Ok(found)
    }

    async fn manifest_bytes(&mut self, version: &str) -> Result<Vec<u8>, PullError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::try_from(ACCEPTED.join(", ")).expect("media types are valid in a header"));
        let reply = self.get(&format!("manifests/{version}"), headers).await?;
        let limit = usize::try_from(MAX_TEXT).unwrap_or(usize::MAX);
        let bytes = self.read_whole(reply, limit).await?.to_vec();
        match version.parse::<Digest>() {
            Ok(wanted) if wanted != Digest::of(&bytes) => {
                Err(StoreError::Digest { got: Digest::of(&bytes), wanted }.into())
            }
            _ => Ok(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A registry with this manifest and no blobs. It counts the requests for blobs.
    fn registry(manifest: String) -> (RegistrySettings, Arc<AtomicUsize>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = format!("docker.io=http://{}", listener.local_addr().unwrap());
        let blobs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&blobs);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut head) = (stream.unwrap(), [0; 4096]);
                let length = stream.read(&mut head).unwrap();
                let is_manifest = String::from_utf8_lossy(&head[..length]).contains("/manifests/");
                counted.fetch_add(usize::from(!is_manifest), Ordering::SeqCst);
                let (status, body) = if is_manifest { ("200 OK", manifest.as_str()) } else { ("404 None", "") };
                let text =
                    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        (RegistrySettings { mirrors: vec![mirror.parse().unwrap()], ..RegistrySettings::default() }, blobs)
    }

    #[tokio::test]
    async fn an_image_that_does_not_fit_is_refused_before_its_first_byte() {
        let manifest = |config: u64, layers: &[u64]| {
            let part = |size: &u64| serde_json::json!({"digest": Digest::of(&size.to_le_bytes()), "size": size});
            let layers: Vec<_> = layers.iter().map(part).collect();
            serde_json::json!({"schemaVersion": 2, "config": part(&config), "layers": layers}).to_string()
        };
        let try_pull = async |text: String, room: fn(&std::path::Path) -> u64| {
            let scratch = tempfile::tempdir().unwrap();
            let store = Store::open(scratch.path()).unwrap().with_room(room);
            let (settings, blobs) = registry(text);
            let place = places(&"tiny".parse().unwrap(), &settings).remove(0);
            let outcome = pull_from(&store, &place, None, &settings.outbound, &|_| {}).await;
            (outcome.unwrap_err(), blobs.load(Ordering::SeqCst))
        };
        for (config, layers) in
            [(1, vec![u64::MAX]), (1, vec![u64::MAX, 1]), (1, vec![40 << 30, 41 << 30]), (9 << 20, vec![])]
        {
            let (refused, blobs) = try_pull(manifest(config, &layers), |_| u64::MAX).await;
            assert!(matches!(refused, PullError::TooLarge(_)), "{config} {layers:?}: {refused}");
            assert_eq!(blobs, 0);
        }
        let (refused, blobs) = try_pull(manifest(1, &[1 << 30, 2 << 30]), |_| 2 << 30).await;
        assert!(
            matches!(refused, PullError::NoRoom { wanted, room } if wanted == (3 << 30) + 1 && room == 2 << 30),
            "{refused}"
        );
        assert_eq!(blobs, 0);
        // The blobs of an image that fits are requested.
        let (missing, blobs) = try_pull(manifest(1, &[1 << 30]), |_| 2 << 30).await;
        assert!(!matches!(missing, PullError::TooLarge(_) | PullError::NoRoom { .. }), "{missing}");
        assert!(blobs > 0);
    }

    #[test]
    fn mirrors_come_first_and_the_longest_name_wins() {
        let settings = RegistrySettings {
            mirrors: ["docker.io=https://m.example/hub", "docker.io/library=http://127.0.0.1:5000/lib"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            ..RegistrySettings::default()
        };
        let shown = |text: &str| -> Vec<String> {
            places(&text.parse().unwrap(), &settings).iter().map(|place| place.reference.to_string()).collect()
        };
        assert_eq!(
            shown("debian:12"),
            ["127.0.0.1:5000/lib/debian:12", "m.example/hub/library/debian:12", "docker.io/library/debian:12"]
        );
        assert_eq!(shown("ghcr.io/a/b"), ["ghcr.io/a/b:latest"]);
        assert_eq!(shown("docker.iox.example/a/b").len(), 1);
        for bad in ["", "x", "=y", "x=", "a b=c"] {
            assert!(bad.parse::<Mirror>().is_err(), "{bad:?}");
        }
    }
}
