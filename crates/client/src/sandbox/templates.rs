//! The templates of a server and their builds.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use isopod_guest_client::guest::Upload;
use isopod_guest_client::transport::{Query, encode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};

/// A template of the team, or a built-in one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateInfo {
    /// Its id.
    #[serde(rename = "templateID")]
    pub id: String,
    /// Its names.
    #[serde(default)]
    pub names: Vec<String>,
    /// Whether other teams may use it.
    #[serde(default)]
    pub public: bool,
    /// The CPUs of its sandboxes.
    #[serde(default)]
    pub cpu_count: u32,
    /// The memory of its sandboxes.
    #[serde(default, rename = "memoryMB")]
    pub memory_mb: u64,
    /// The status of its build: `waiting`, `building`, `ready` or `error`.
    #[serde(default)]
    pub build_status: String,
    /// The number of its builds.
    #[serde(default)]
    pub build_count: u64,
    /// The number of sandboxes that were created from it.
    #[serde(default)]
    pub spawn_count: u64,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// Its builds, the newest first. Only if a single template was requested.
    #[serde(default)]
    pub builds: Vec<TemplateBuild>,
}

/// One build of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateBuild {
    /// Its id.
    #[serde(rename = "buildID")]
    pub id: String,
    /// `waiting`, `building`, `ready` or `error`.
    pub status: String,
    /// The tags that name it.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Why it failed.
    #[serde(default)]
    pub reason: Option<String>,
    /// When it was requested.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A build from a Dockerfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerfileBuild {
    /// The template's name, optionally with a tag: `web:v1`.
    pub name: String,
    /// Additional tags.
    pub tags: Vec<String>,
    /// The path of the Dockerfile in the context. The default is `e2b.Dockerfile`.
    pub dockerfile: String,
    /// The CPUs of its sandboxes.
    pub cpu_count: Option<u32>,
    /// The memory of its sandboxes in MiB.
    pub memory_mb: Option<u64>,
    /// A command that runs in every new sandbox.
    pub start_cmd: Option<String>,
    /// A command that is repeated until it succeeds. Then a sandbox is ready.
    pub ready_cmd: Option<String>,
    /// Values for `ARG`s.
    pub args: Vec<(String, String)>,
    /// The stage to build. The default is the last one.
    pub target: Option<String>,
    /// Whether to ignore results of earlier builds.
    pub no_cache: bool,
    /// Whether the server's host may stand in for an image of another version that can't be had.
    pub allow_host_base: bool,
}

/// A build that was requested with its Dockerfile and is not started yet, as E2B's older CLI does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedBuild {
    /// The template's id.
    pub template: String,
    /// The build's id.
    pub build: String,
}

/// What is sent along with the files of a requested build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildContext {
    /// Values for `ARG`s.
    pub args: Vec<(String, String)>,
    /// Whether to ignore results of earlier builds.
    pub no_cache: bool,
}

/// A build that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BegunBuild {
    /// The template's id.
    #[serde(rename = "templateID")]
    pub template: String,
    /// The build's id.
    #[serde(rename = "buildID")]
    pub build: String,
    /// The template's names.
    #[serde(default)]
    pub names: Vec<String>,
    /// The tags that the build will get.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// The progress of a build.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildProgress {
    /// `waiting`, `building`, `ready` or `error`.
    pub status: String,
    /// The new lines of its log, at most a hundred.
    #[serde(default)]
    pub log_entries: Vec<BuildLogEntry>,
    /// Why it failed.
    pub reason: Option<BuildReason>,
}

/// A line of a build.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BuildLogEntry {
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The phase: `base`, a number, or `finalize`.
    #[serde(default)]
    pub step: Option<String>,
    /// The text.
    pub message: String,
}

/// Why a build failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BuildReason {
    /// The message.
    pub message: String,
    /// The phase.
    #[serde(default)]
    pub step: Option<String>,
}

impl BuildProgress {
    /// Whether the build has ended.
    pub fn has_ended(&self) -> bool {
        self.status == "ready" || self.status == "error"
    }
}

/// The time limit of uploads in the official SDKs.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

impl Client {
    /// Lists the team's templates and the built-in ones.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn templates(&self) -> Result<Vec<TemplateInfo>, ApiError> {
        self.call(Call::new(Method::GET, "/templates")).await?.parse()
    }

    /// Returns a template with its builds, by name or id.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is none.
    pub async fn template(&self, name: &str) -> Result<TemplateInfo, ApiError> {
        self.call(Call::new(Method::GET, format!("/templates/{}", encode(name)))).await?.parse()
    }

    /// Removes a template with all its builds. Returns false if there is none. Its sandboxes keep running.
    ///
    /// # Errors
    /// If it belongs to another team.
    pub async fn remove_template(&self, name: &str) -> Result<bool, ApiError> {
        match self.call(Call::new(Method::DELETE, format!("/templates/{}", encode(name)))).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Assigns tags to the build that `target` names: `name:tag`, or `name:` and a build's id. Returns the id of that
    /// build.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such build.
    pub async fn assign_template_tags(&self, target: &str, tags: &[String]) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Assigned {
            #[serde(rename = "buildID")]
            build: String,
        }
        let body = json!({ "target": target, "tags": tags });
        let assigned: Assigned = self.call(Call::new(Method::POST, "/templates/tags").json(&body)).await?.parse()?;
        Ok(assigned.build)
    }

    /// Removes tags of a template.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it has none of them.
    pub async fn remove_template_tags(&self, name: &str, tags: &[String]) -> Result<(), ApiError> {
        let body = json!({ "name": name, "tags": tags });
        self.call(Call::new(Method::DELETE, "/templates/tags").json(&body)).await.map(drop)
    }

    /// Starts to build a template from a Dockerfile. `context` is a tar archive, optionally compressed with gzip, with
    /// the Dockerfile and the files that it may copy. Only Isopod's servers support this.
    ///
    /// # Errors
    /// If the request or the archive is invalid.
    pub async fn build_dockerfile(
        &self,
        wanted: &DockerfileBuild,
        context: impl Into<Upload>,
    ) -> Result<BegunBuild, ApiError> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"))]);
        let path = wanted.query().behind("/isopod/templates/builds");
        self.upload(Method::POST, &path, headers, context.into().into_body(), UPLOAD_TIMEOUT).await?.parse()
    }

    /// Sends the files that the Dockerfile of a requested build copies: a tar archive, optionally compressed with gzip. Only
    /// Isopod's servers support this.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such build, [`ApiError::Conflict`] if it was started already.
    pub async fn send_build_context(
        &self,
        build: &RequestedBuild,
        wanted: &BuildContext,
        context: impl Into<Upload>,
    ) -> Result<(), ApiError> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"))]);
        let (template, build) = (encode(&build.template), encode(&build.build));
        let path = wanted.query().behind(&format!("/isopod/templates/{template}/builds/{build}/context"));
        self.upload(Method::PUT, &path, headers, context.into().into_body(), UPLOAD_TIMEOUT).await.map(drop)
    }

    /// Returns the progress of a build, and its log after the first `offset` lines.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such build.
    pub async fn build_progress(&self, build: &BegunBuild, offset: usize) -> Result<BuildProgress, ApiError> {
        let (template, build) = (encode(&build.template), encode(&build.build));
        let path = format!("/templates/{template}/builds/{build}/status?logsOffset={offset}&limit=100");
        self.call(Call::new(Method::GET, path)).await?.parse()
    }

    /// Cancels a build. Returns false if it is not running.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such build.
    pub async fn cancel_build(&self, build: &BegunBuild) -> Result<bool, ApiError> {
        let path = format!("/isopod/templates/builds/{}/cancel", encode(&build.build));
        match self.call(Call::new(Method::POST, path)).await {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl BuildContext {
    fn query(&self) -> Query {
        let mut query = Query::new();
        for (name, value) in &self.args {
            query = query.with("arg", &format!("{name}={value}"));
        }
        query.with_some("no_cache", self.no_cache.then_some("1"))
    }
}

impl DockerfileBuild {
    fn query(&self) -> Query {
        let mut query = Query::new().with("name", &self.name);
        for tag in &self.tags {
            query = query.with("tag", tag);
        }
        if !self.dockerfile.is_empty() {
            query = query.with("dockerfile", &self.dockerfile);
        }
        for (name, value) in &self.args {
            query = query.with("arg", &format!("{name}={value}"));
        }
        let cpus = self.cpu_count.map(|count| count.to_string());
        let memory = self.memory_mb.map(|size| size.to_string());
        query
            .with_some("cpu_count", cpus.as_deref())
            .with_some("memory_mb", memory.as_deref())
            .with_some("start_cmd", self.start_cmd.as_deref())
            .with_some("ready_cmd", self.ready_cmd.as_deref())
            .with_some("target", self.target.as_deref())
            .with_some("no_cache", self.no_cache.then_some("1"))
            .with_some("allow_host_base", self.allow_host_base.then_some("1"))
    }
}
