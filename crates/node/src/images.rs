//! The images of a node: its store, and the registries that it may ask.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_image::registry::{
    AwsKeys, Credentials, FetchError, Fetched, Progress, PullError, RegistrySettings, ecr_credentials, fetch, pull,
};
use isopod_image::{Digest, Image, Reference, Store, StoreError};
use isopod_wire::build::RegistryAuth;

/// How long a registry that could not be reached is left alone: builds on a machine without the internet must not wait
/// for it at every turn.
const REST: Duration = Duration::from_secs(60);

/// Where images are, below the state directory.
const DIRECTORY: &str = "images";

/// The store and the registries.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) store: Store,
    settings: RegistrySettings,
    /// When a registry could not be reached, and why.
    silent: Mutex<HashMap<String, (Instant, String)>>,
}

/// The store of images of a state directory.
///
/// # Errors
/// When it cannot be opened.
pub fn image_store(state: &Path) -> Result<Store, StoreError> {
    Store::open(&state.join(DIRECTORY))
}

impl Images {
    pub(crate) fn open(state: &Path, settings: RegistrySettings) -> Result<Self, StoreError> {
        Ok(Self { store: image_store(state)?, settings, silent: Mutex::default() })
    }

    /// The image of that name, from the store or from its registry. The error says why not, for people.
    pub(crate) async fn get(
        &self,
        reference: &Reference,
        auth: Option<&RegistryAuth>,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Image, String> {
        if let Some(image) = self.store.find(reference) {
            return Ok(image);
        }
        if let Some(reason) = self.is_silent(reference.registry()) {
            return Err(reason);
        }
        let credentials = match auth {
            Some(auth) => Some(self.credentials(auth).await.map_err(|error| explain(&error))?),
            None => None,
        };
        match pull(&self.store, reference, credentials.as_ref(), &self.settings, progress).await {
            Ok(digest) => self.store.image(&digest).map_err(|error| explain(&error)),
            Err(error) => {
                if matches!(error, PullError::Unreachable { .. }) {
                    let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
                    silent.insert(reference.registry().to_owned(), (Instant::now(), error.to_string()));
                }
                Err(explain(&error))
            }
        }
    }

    /// A file from the web.
    pub(crate) async fn fetch(&self, url: &str, checksum: Option<&Digest>, most: u64) -> Result<Fetched, FetchError> {
        fetch(&self.store, url, checksum, most, &self.settings).await
    }

    async fn credentials(&self, auth: &RegistryAuth) -> Result<Credentials, PullError> {
        match auth {
            RegistryAuth::Basic { username, password } => {
                Ok(Credentials { username: username.clone(), password: password.0.clone() })
            }
            // As Google's registries want it.
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

    fn is_silent(&self, registry: &str) -> Option<String> {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.retain(|_, (since, _)| since.elapsed() < REST);
        silent.get(registry).map(|(_, reason)| reason.clone())
    }
}

fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
