//! Pulling images from registries: manifest, config and layers, each verified by its hash, each continued where an
//! earlier pull stopped.
//!
//! A registry of this machine (loopback or link-local) is only spoken to when the settings name it: whoever can build
//! templates could otherwise make the server knock on its neighbours' doors.

mod auth;
mod http;

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use ::http::header::{ACCEPT, RANGE};
use ::http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt;

pub use auth::Credentials;

use crate::manifest::{ACCEPTED, Descriptor, Found, parse};
use crate::store::{MOST_TEXT, Store, StoreError};
use crate::{Digest, Reference};
use auth::Session;

/// How registries are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Other places for names; the longest that fits is tried first, then the name itself.
    pub mirrors: Vec<Mirror>,
    /// Ask nobody.
    pub offline: bool,
}

/// Another place for names that begin with something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// `docker.io`, `docker.io/library`.
    pub from: String,
    /// `mirror.example:5000/hub`.
    pub to: String,
    /// Without TLS.
    pub plain: bool,
}

/// Why a text is no mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mirror: write name=place, such as docker.io=https://mirror.example")]
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

/// Why an image was not pulled. What was received stays for the next try.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The settings forbid it.
    #[error("no registry may be asked")]
    Offline,
    /// A registry of this machine that nobody named in the settings.
    #[error("the registry {0} is this machine itself; name it as a mirror to allow that")]
    Local(String),
    /// It does not answer.
    #[error("the registry {registry} cannot be reached: {reason}")]
    Unreachable {
        /// Its host.
        registry: String,
        /// Why.
        reason: String,
    },
    /// It wants to know who asks, or does not like who does.
    #[error("the registry {0} refuses: wrong or missing name and password")]
    Denied(String),
    /// It has no such image.
    #[error("the registry has no {0}")]
    NotFound(String),
    /// An answer that makes no sense.
    #[error("the registry {registry} answers {what}")]
    Answer {
        /// Its host.
        registry: String,
        /// In words.
        what: String,
    },
    /// It has it for other machines.
    #[error("{0} is not there for this kind of machine")]
    Platform(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far a pull is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done.
    pub message: String,
}

/// A whole exchange may take this long without a byte.
const SILENCE: Duration = Duration::from_secs(60);

/// One place where an image may be.
#[derive(Clone, Debug)]
struct Place {
    reference: Reference,
    plain: bool,
    /// Whether the settings name it.
    is_named: bool,
}

/// Pulls an image into the store and gives it its name there. Returns the digest of its manifest.
///
/// # Errors
/// When no place has it; the error of the last place is told.
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
        match pull_from(store, &place, credentials, progress).await {
            Ok(digest) => {
                store.tag(reference, &digest)?;
                return Ok(digest);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn places(reference: &Reference, settings: &RegistrySettings) -> Vec<Place> {
    let whole = format!("{}/{}", reference.registry(), reference.repository());
    let fits = |mirror: &&Mirror| {
        whole.strip_prefix(&mirror.from).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut fitting: Vec<&Mirror> = settings.mirrors.iter().filter(fits).collect();
    fitting.sort_by_key(|mirror| std::cmp::Reverse(mirror.from.len()));
    let moved = |mirror: &Mirror| {
        let target = format!("{}{}", mirror.to, &whole[mirror.from.len()..]);
        let (registry, repository) = target.split_once('/')?;
        let reference = reference.moved_to(registry, repository);
        Some(Place { reference, plain: mirror.plain, is_named: true })
    };
    let mut places: Vec<Place> = fitting.iter().filter_map(|mirror| moved(mirror)).collect();
    if !places.iter().any(|place| place.reference == *reference) {
        places.push(Place { reference: reference.clone(), plain: false, is_named: false });
    }
    places
}

async fn pull_from(
    store: &Store,
    place: &Place,
    credentials: Option<&Credentials>,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Digest, PullError> {
    let mut session = Session::new(place, credentials)?;
    let (digest, manifest) = session.manifest(store, place.reference.version()).await?;
    let parts = std::iter::once(&manifest.config).chain(&manifest.layers);
    for part in parts {
        if store.blob(&part.digest).is_some() {
            continue;
        }
        let megabytes = part.size.div_ceil(1 << 20);
        progress(Progress { message: format!("pulling {} ({megabytes} MB)", short(&part.digest)) });
        session.blob(store, part).await?;
    }
    Ok(digest)
}

fn short(digest: &Digest) -> &str {
    &digest.digits()[..12]
}

impl Session<'_> {
    /// The manifest for this machine, put into the store.
    async fn manifest(
        &mut self,
        store: &Store,
        version: &str,
    ) -> Result<(Digest, crate::manifest::Manifest), PullError> {
        let bytes = self.manifest_bytes(version).await?;
        let found = match parse(&bytes).map_err(|error| self.nonsense(format!("a manifest that is none: {error}")))? {
            Found::Manifest(manifest) => (store.put(&bytes)?, manifest),
            Found::Index(index) => {
                let own = index.own().ok_or_else(|| PullError::Platform(self.place.reference.to_string()))?;
                let bytes = self.manifest_bytes(own.digest.as_str()).await?;
                match parse(&bytes).map_err(|error| self.nonsense(format!("a manifest that is none: {error}")))? {
                    Found::Manifest(manifest) => (store.put(&bytes)?, manifest),
                    Found::Index(_) => return Err(self.nonsense("an index in an index".to_owned())),
                }
            }
        };
        Ok(found)
    }

    async fn manifest_bytes(&mut self, version: &str) -> Result<Vec<u8>, PullError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::try_from(ACCEPTED.join(", ")).expect("media types are plain text"));
        let reply = self.get(&format!("manifests/{version}"), headers).await?;
        let bytes = self.read_text(reply).await?;
        match version.parse::<Digest>() {
            Ok(wanted) if wanted != Digest::of(&bytes) => {
                Err(StoreError::Digest { got: Digest::of(&bytes), wanted }.into())
            }
            _ => Ok(bytes),
        }
    }

    /// A blob, put into the store once it is whole and right.
    async fn blob(&mut self, store: &Store, part: &Descriptor) -> Result<(), PullError> {
        let path = store.partial(&part.digest);
        let failed = |error| PullError::Store(crate::store::failed("write", &path)(error));
        let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
        let mut have = file.metadata().map_err(failed)?.len();
        if have > part.size {
            file.set_len(0).map_err(failed)?;
            have = 0;
        }
        if have < part.size {
            let mut headers = HeaderMap::new();
            if have > 0 {
                headers.insert(RANGE, HeaderValue::try_from(format!("bytes={have}-")).expect("it is a number"));
            }
            let reply = self.get(&format!("blobs/{}", part.digest), headers).await?;
            if have > 0 && reply.status() != StatusCode::PARTIAL_CONTENT {
                // It gives the whole, so what there was is not needed.
                file.set_len(0).map_err(failed)?;
                have = 0;
            }
            self.receive(reply, &mut file, part.size - have).await?;
        }
        let (store, digest) = (store.clone(), part.digest.clone());
        let accepted = tokio::task::spawn_blocking(move || store.accept(&digest)).await;
        Ok(accepted.map_err(|error| self.nonsense(error.to_string()))??)
    }

    async fn receive(
        &self,
        reply: ::http::Response<hyper::body::Incoming>,
        file: &mut std::fs::File,
        most: u64,
    ) -> Result<(), PullError> {
        let mut body = reply.into_body();
        let mut received = 0;
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame()).await;
            let frame = frame.map_err(|_| self.unreachable("it stopped sending".to_owned()))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|error| self.unreachable(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            received += data.len() as u64;
            if received > most {
                return Err(self.nonsense("more than the manifest says".to_owned()));
            }
            file.write_all(&data).map_err(|source| StoreError::File {
                action: "write",
                path: "a layer".into(),
                source,
            })?;
        }
    }

    async fn read_text(&self, reply: ::http::Response<hyper::body::Incoming>) -> Result<Vec<u8>, PullError> {
        let most = usize::try_from(MOST_TEXT).unwrap_or(usize::MAX);
        let body = http_body_util::Limited::new(reply.into_body(), most);
        let read = tokio::time::timeout(SILENCE, body.collect()).await;
        let read = read.map_err(|_| self.unreachable("it stopped sending".to_owned()))?;
        Ok(read.map_err(|error| self.unreachable(error.to_string()))?.to_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_first_and_the_longest_name_wins() {
        let settings = RegistrySettings {
            mirrors: ["docker.io=https://m.example/hub", "docker.io/library=http://127.0.0.1:5000/lib"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            offline: false,
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
