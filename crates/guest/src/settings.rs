//! What the host tells the guest about its sandbox through `POST /init`.

use std::collections::BTreeMap;

use serde::Deserialize;

const DEFAULT_USER: &str = "user";

/// The sandbox's settings; each `/init` replaces them all.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Variables that every process gets.
    pub(crate) env: BTreeMap<String, String>,
    /// What clients have to show; none means that everyone is welcome.
    pub(crate) access_token: Option<String>,
    pub(crate) default_user: String,
    pub(crate) default_workdir: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { env: BTreeMap::new(), access_token: None, default_user: DEFAULT_USER.to_owned(), default_workdir: None }
    }
}

/// The body of `POST /init`. Unknown fields are of newer hosts and ignored.
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
