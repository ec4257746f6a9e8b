//! What the host tells the guest about its sandbox through `POST /init`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

const DEFAULT_USER: &str = "user";

/// The sandbox's settings; each `/init` replaces them all.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Variables that every process gets.
    pub(crate) env: BTreeMap<String, String>,
    /// The token that clients must send. None means that no token is needed.
    pub(crate) access_token: Option<String>,
    pub(crate) default_user: String,
    pub(crate) default_workdir: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { env: BTreeMap::new(), access_token: None, default_user: DEFAULT_USER.to_owned(), default_workdir: None }
    }
}

/// The settings of the last `/init`; none before the first one.
#[derive(Debug, Default)]
pub(crate) struct CurrentSettings {
    /// Written by `/init`, read by everyone.
    current: Mutex<Option<Arc<Settings>>>,
}

impl CurrentSettings {
    pub(crate) fn get(&self) -> Option<Arc<Settings>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, settings: Settings) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(settings));
    }
}

/// The body of `POST /init`. Unknown fields come from newer hosts and are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InitRequest {
    env_vars: Option<BTreeMap<String, String>>,
    access_token: Option<String>,
    default_user: Option<String>,
    default_workdir: Option<String>,
    pub(crate) hostname: Option<String>,
}

impl From<InitRequest> for Settings {
    fn from(request: InitRequest) -> Self {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        Self {
            env: request.env_vars.unwrap_or_default(),
            access_token: given(request.access_token),
            default_user: given(request.default_user).unwrap_or_else(|| DEFAULT_USER.to_owned()),
            default_workdir: given(request.default_workdir),
        }
    }
}
