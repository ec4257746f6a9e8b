//! The images of a node: its store, and the registries that it may use.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_disk::available_at;
use isopod_image::registry::{
    AwsKeys, Credentials, FetchError, Fetched, Progress, PullError, RegistrySettings, ecr_credentials, fetch, pull,
};
use isopod_image::{Digest, Image, Reference, Store, StoreError};
use isopod_wire::build::RegistryAuth;
use isopod_wire::error_chain;

/// How long an unreachable registry is not tried again. Without this, builds on a machine without internet access would
/// wait for it every time.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The directory below the state directory.
const DIRECTORY: &str = "images";

/// The store and the registries.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) store: Store,
    settings: RegistrySettings,
    /// When a registry was unreachable, and why.
    unreachable: Mutex<HashMap<String, (Instant, String)>>,
}

/// An image, and the store that has it.
#[derive(Debug)]
pub(crate) struct StoredImage {
    pub(crate) image: Image,
    pub(crate) store: Store,
    /// The team whose credentials were needed. `None` if the image is public.
    pub(crate) team: Option<String>,
}

/// The image store of a state directory.
///
/// # Errors If it cannot be opened.
pub fn image_store(state: &Path) -> Result<Store, StoreError> {
    Ok(Store::open(&state.join(DIRECTORY))?.with_room(available_at))
}

impl Images {
    pub(crate) fn open(state: &Path, settings: RegistrySettings) -> Result<Self, StoreError> {
        Ok(Self { store: image_store(state)?, settings, unreachable: Mutex::default() })
    }

    /// Gets an image from a store that the team may read, or from its registry. What needs the team's credentials is
    /// stored for this team only. The error is a message for people.
    pub(crate) async fn get(
        &self,
        reference: &Reference,
        auth: Option<&RegistryAuth>,
        team: Option<&str>,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<StoredImage, String> {
        if let Some(found) = self.find(reference, team) {
            return Ok(found);
        }
        if let Some(reason) = self.why_unreachable(reference.registry()) {
            return Err(reason);
        }
        let credentials = match auth {
            Some(auth) => Some(self.credentials(auth).await.map_err(|error| error_chain(&error))?),
            None => None,
        };
        let team = team.filter(|_| credentials.is_some()).map(str::to_owned);
        let store = match &team {
            Some(team) => self.store.private(team).map_err(|error| error_chain(&error))?,
            None => self.store.clone(),
        };
        match pull(&store, reference, credentials.as_ref(), &self.settings, progress).await {
            Ok(digest) => {
                let image = store.image(&digest).map_err(|error| error_chain(&error))?;
                Ok(StoredImage { image, store, team })
            }
            Err(error) => {
                if matches!(error, PullError::Unreachable { .. }) {
                    let mut unreachable = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
                    unreachable.insert(reference.registry().to_owned(), (Instant::now(), error.to_string()));
                }
                Err(error_chain(&error))
            }
        }
    }

    fn find(&self, reference: &Reference, team: Option<&str>) -> Option<StoredImage> {
        if let Some(image) = self.store.find(reference) {
            return Some(StoredImage { image, store: self.store.clone(), team: None });
        }
        let team = team?;
        let store = self.store.find_private(team)?;
        Some(StoredImage { image: store.find(reference)?, store, team: Some(team.to_owned()) })
    }

    /// Fetches a file from a URL and stores it for the team only, because knowing a file's hash does not prove the
    /// right to fetch it.
    pub(crate) async fn fetch(
        &self,
        url: &str,
        checksum: Option<&Digest>,
        max_bytes: u64,
        team: Option<&str>,
    ) -> Result<Fetched, FetchError> {
        let store = match team {
            Some(team) => self.store.private(team)?,
            None => self.store.clone(),
        };
        fetch(&store, url, checksum, max_bytes, &self.settings).await
    }

    async fn credentials(&self, auth: &RegistryAuth) -> Result<Credentials, PullError> {
        match auth {
            RegistryAuth::Basic { username, password } => {
                Ok(Credentials { username: username.clone(), password: password.0.clone() })
            }
            // As Google's registries require.
            RegistryAuth::Gcp(account) => {
                Ok(Credentials { username: "_json_key".to_owned(), password: account.0.clone() })
            }
            RegistryAuth::Aws { access_key_id, secret_access_key, region } => {
                let keys = AwsKeys {
                    access_key_id: access_key_id.clone(),
                    secret_access_key: secret_access_key.0.clone(),
                    region: region.clone(),
                };
                ecr_credentials(&keys, &self.settings).await
            }
        }
    }

    fn why_unreachable(&self, registry: &str) -> Option<String> {
        let mut unreachable = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        unreachable.retain(|_, (since, _)| since.elapsed() < RETRY_AFTER);
        unreachable.get(registry).map(|(_, reason)| reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A web server that counts requests and always returns the same file.
    fn serve(body: &'static str) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&count);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).unwrap();
            }
        });
        (address, count)
    }

    #[tokio::test]
    async fn a_file_that_one_team_fetched_is_not_given_to_another_by_its_hash() {
        let (address, count) = serve("secret");
        let state = tempfile::tempdir().unwrap();
        let mirror = format!("files.example=http://{address}").parse().unwrap();
        let settings = RegistrySettings { mirrors: vec![mirror], ..RegistrySettings::default() };
        let images = Images::open(state.path(), settings).unwrap();
        let digest = Digest::of(b"secret");
        let fetch = async |team| {
            let fetched = images.fetch("http://files.example/f", Some(&digest), 100, team).await.unwrap();
            assert_eq!(std::fs::read_to_string(fetched.path).unwrap(), "secret");
            count.load(Ordering::SeqCst)
        };
        assert_eq!(fetch(Some("a")).await, 1);
        assert_eq!(fetch(Some("a")).await, 1, "the team's own is used again");
        assert_eq!(fetch(Some("b")).await, 2);
        assert_eq!(fetch(None).await, 3);
        // A file in the shared store is no reason to give it to a team that cannot fetch it.
        assert_eq!(fetch(Some("c")).await, 4);
    }

    #[tokio::test]
    async fn a_file_is_not_fetched_to_a_disk_that_has_only_its_reserve() {
        let (address, _) = serve("secret");
        let state = tempfile::tempdir().unwrap();
        let mirror = format!("files.example=http://{address}").parse().unwrap();
        let settings = RegistrySettings { mirrors: vec![mirror], ..RegistrySettings::default() };
        let mut images = Images::open(state.path(), settings).unwrap();
        images.store = images.store.with_room(|_| 5);
        for team in [None, Some("a")] {
            let refused = images.fetch("http://files.example/f", None, 100, team).await.unwrap_err();
            assert!(matches!(refused, FetchError::NoRoom), "{refused}");
        }
    }
}
