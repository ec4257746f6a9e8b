//! The body of a create request in both versions, and its conversion into a checked request.

use std::collections::BTreeMap;
use std::time::Duration;

use isopod_api::{ApiError, Caller};
use isopod_store::RESERVED;
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::app::App;
use super::errors::unusable;
use super::network_config::NetworkBody;
use super::volume_mounts::VolumeMountBody;
use crate::lifecycle::{Fleet, NewSandbox, SESSION_KEY};

/// The body of both versions. `secure` exists only in version 1; in version 2, all sandboxes are secured.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewSandbox)]
pub(super) struct NewSandboxBody {
    #[serde(rename = "templateID")]
    #[schema(min_length = 1, max_length = 256)]
    template_id: String,
    /// In seconds.
    #[schema(minimum = 0, maximum = 86400)]
    timeout: Option<i64>,
    secure: Option<bool>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<NetworkBody>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    mcp: Option<Value>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    iam: Option<Value>,
    volume_mounts: Option<Vec<VolumeMountBody>>,
    /// Of a snapshot: whether to restore its memory, if it has any. With `false`, the sandbox starts from its files alone. Not
    /// part of E2B's API.
    memory: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct AutoResume {
    enabled: bool,
}

/// The body of version 2, where every sandbox is secured, whatever `secure` says.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct NewSandboxV2(pub(super) NewSandboxBody);

impl PartialSchema for NewSandboxV2 {
    fn schema() -> RefOr<Schema> {
        match NewSandboxBody::schema() {
            RefOr::T(Schema::Object(mut object)) => {
                object.properties.remove("secure");
                object.into()
            }
            other => other,
        }
    }
}

impl ToSchema for NewSandboxV2 {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        NewSandboxBody::schemas(schemas);
    }
}

/// The differences between the versions of the API.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) timeout: Duration,
    /// Whether sandboxes are secured even if the request does not ask for it.
    pub(super) always_secure: bool,
}

pub(super) const V1: Defaults = Defaults { timeout: Duration::from_secs(15), always_secure: false };
pub(super) const V2: Defaults = Defaults { timeout: Duration::from_secs(300), always_secure: true };

impl NewSandboxBody {
    /// Takes the requested volumes, which are looked up separately.
    pub(super) fn take_volumes(&mut self) -> Vec<VolumeMountBody> {
        self.volume_mounts.take().unwrap_or_default()
    }

    pub(super) async fn checked(self, app: &App, caller: &Caller, defaults: Defaults) -> Result<NewSandbox, ApiError> {
        self.refuse_unsupported()?;
        let secure = defaults.always_secure || self.secure.unwrap_or(false);
        let network = self.network.unwrap_or_default().checked(&app.settings.sandbox_networks)?;
        if network.allow_public_traffic == Some(false) && !secure {
            return Err(ApiError::bad_request("network.allowPublicTraffic: false requires a secured sandbox"));
        }
        let auto_resume = self.auto_resume.is_some_and(|auto_resume| auto_resume.enabled);
        let auto_pause_memory = self.auto_pause_memory.unwrap_or(true);
        if auto_resume && !auto_pause_memory {
            return Err(ApiError::bad_request(
                "autoResume requires autoPauseMemory: a sandbox paused without its memory cannot be resumed by traffic",
            ));
        }
        let metadata = self.metadata.unwrap_or_default();
        let asked = checked_template(&self.template_id)?;
        let mut template = app.catalogue.usable(&caller.team, asked).await.map_err(unusable)?;
        if self.memory == Some(false) {
            template.leave_memory();
        }
        Ok(NewSandbox {
            team: caller.team.clone(),
            template,
            timeout: checked_timeout(self.timeout, &app.fleet)?.unwrap_or(defaults.timeout),
            auto_pause: self.auto_pause.unwrap_or(false),
            auto_pause_memory,
            auto_resume,
            secure,
            allow_internet: self.allow_internet_access,
            network,
            session_key: checked_session(&metadata)?,
            mounts: Vec::new(),
            volume_mounts: Vec::new(),
            metadata,
            env: checked_env(self.env_vars.unwrap_or_default())?,
            idempotency_key: None,
        })
    }

    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        if self.mcp.is_some() {
            return Err(ApiError::unsupported("mcp"));
        }
        if self.iam.is_some() {
            return Err(ApiError::unsupported("iam"));
        }
        Ok(())
    }
}

fn checked_template(name: &str) -> Result<&str, ApiError> {
    if name.is_empty() || name.len() > 256 {
        return Err(ApiError::bad_request("templateID must have 1 to 256 characters"));
    }
    Ok(name)
}

/// In seconds, and at most the maximum lifetime.
pub(super) fn checked_timeout(seconds: Option<i64>, fleet: &Fleet) -> Result<Option<Duration>, ApiError> {
    let Some(seconds) = seconds else { return Ok(None) };
    let most = fleet.max_lifetime();
    let timeout = u64::try_from(seconds).map(Duration::from_secs);
    let timeout = timeout.map_err(|_| ApiError::bad_request("timeout must not be negative"))?;
    if timeout > most {
        let hours = most.as_secs_f64() / 3600.0;
        return Err(ApiError::bad_request(format!("timeout cannot be greater than {hours} hours")));
    }
    Ok(Some(timeout))
}

fn checked_session(metadata: &BTreeMap<String, String>) -> Result<Option<String>, ApiError> {
    match metadata.get(SESSION_KEY) {
        Some(key) if key.is_empty() || key.len() > 255 => {
            Err(ApiError::bad_request(format!("{SESSION_KEY} must have 1 to 255 characters")))
        }
        Some(key) if key.starts_with(RESERVED) => {
            Err(ApiError::bad_request(format!("{SESSION_KEY} must not start with {RESERVED:?}")))
        }
        key => Ok(key.cloned()),
    }
}

fn checked_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    let bad = env.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    match bad {
        Some((name, _)) => Err(ApiError::bad_request(format!("envVars: {name:?} cannot be set"))),
        None => Ok(env),
    }
}
