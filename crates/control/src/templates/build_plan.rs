//! Validates the instructions of a client for a build and converts them for the node. A build starts only if all of
//! them are understood.

use std::collections::BTreeMap;
use std::path::PathBuf;

use isopod_store::{StoreError, TeamId};
use isopod_wire::build::{BuildFrom, BuildSource, BuildStep, DockerfileSource, RegistryAuth, StepError};
use isopod_wire::node::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::catalogue::{Catalogue, FindError};

/// `POST /v2/templates/{id}/builds/{build}`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StartBuild {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<RegistryBody>,
    #[serde(default)]
    pub(crate) force: bool,
    #[serde(default)]
    steps: Vec<StepBody>,
    pub(crate) start_cmd: Option<String>,
    pub(crate) ready_cmd: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BuildStep)]
struct StepBody {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    files_hash: Option<String>,
    #[serde(default)]
    force: bool,
}

/// The three kinds of registries in the SDK.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schema(as = ImageRegistry)]
enum RegistryBody {
    Registry {
        username: String,
        #[schema(value_type = String)]
        password: Secret,
    },
    #[serde(rename_all = "camelCase")]
    Aws {
        aws_access_key_id: String,
        #[schema(value_type = String)]
        aws_secret_access_key: Secret,
        aws_region: String,
    },
    #[serde(rename_all = "camelCase")]
    Gcp {
        #[schema(value_type = String)]
        service_account_json: Secret,
    },
}

/// What clients of version 1 send before the build is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LegacyBuild {
    pub(crate) dockerfile: String,
    pub(crate) start_cmd: Option<String>,
    pub(crate) ready_cmd: Option<String>,
}

/// Why a build cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("set either fromImage or fromTemplate, but not both")]
    From,
    #[error("step {number}: {source}")]
    Step { number: usize, source: StepError },
    #[error("step {number}: the files {hash:?} were not uploaded")]
    NotUploaded { number: usize, hash: String },
    #[error("a build can have at most {MAX_STEPS} steps, but this one has {0}")]
    TooMany(usize),
    #[error("fromTemplate: {0}")]
    Template(#[from] FindError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

const MAX_STEPS: usize = 1000;

/// Converts the SDK's list of steps.
pub(crate) async fn plan_steps(
    catalogue: &Catalogue,
    team: &TeamId,
    wanted: StartBuild,
) -> Result<BuildSource, PlanError> {
    if wanted.steps.len() > MAX_STEPS {
        return Err(PlanError::TooMany(wanted.steps.len()));
    }
    let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let from = match (given(wanted.from_image), given(wanted.from_template)) {
        (Some(reference), None) => {
            BuildFrom::Image { reference, auth: wanted.from_image_registry.map(RegistryBody::auth) }
        }
        (None, Some(name)) => {
            let template = catalogue.usable(team, &name).await?;
            if template.snapshot.is_some() {
                return Err(FindError::IsSnapshot(name).into());
            }
            BuildFrom::Template(template.node_template.into_name())
        }
        _ => return Err(PlanError::From),
    };
    let mut steps = Vec::new();
    for (number, step) in (1..).zip(wanted.steps) {
        steps.push(plan_step(catalogue, team, number, step).await?);
    }
    Ok(BuildSource::Steps { from, steps })
}

async fn plan_step(
    catalogue: &Catalogue,
    team: &TeamId,
    number: usize,
    step: StepBody,
) -> Result<BuildStep, PlanError> {
    let archive = match step.files_hash {
        None => None,
        Some(hash) => {
            if !is_files_hash(&hash) || !catalogue.store.touch_template_file(team, &hash).await? {
                return Err(PlanError::NotUploaded { number, hash });
            }
            Some(catalogue.uploads.archive(team, &hash))
        }
    };
    BuildStep::parse(&step.kind, &step.args, archive, step.force).map_err(|source| PlanError::Step { number, source })
}

/// 64 hexadecimal digits, which is also safe as a file name.
pub(crate) fn is_files_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A Dockerfile with the files that the client has sent, if any.
pub(crate) fn legacy_source(
    legacy: &LegacyBuild,
    context: Option<PathBuf>,
    args: BTreeMap<String, String>,
) -> BuildSource {
    BuildSource::Dockerfile(DockerfileSource {
        context,
        name: "Dockerfile".to_owned(),
        text: legacy.dockerfile.clone(),
        args,
        target: None,
        auth: None,
    })
}

impl RegistryBody {
    fn auth(self) -> RegistryAuth {
        match self {
            Self::Registry { username, password } => RegistryAuth::Basic { username, password },
            Self::Gcp { service_account_json } => RegistryAuth::Gcp(service_account_json),
            Self::Aws { aws_access_key_id, aws_secret_access_key, aws_region } => RegistryAuth::Aws {
                access_key_id: aws_access_key_id,
                secret_access_key: aws_secret_access_key,
                region: aws_region,
            },
        }
    }
}

impl std::fmt::Debug for RegistryBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryBody(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_hash_becomes_a_file_name() {
        assert!(is_files_hash(&"a0".repeat(32)));
        for bad in ["", "../x", &"A0".repeat(32), &"a0".repeat(33), &"g0".repeat(32)] {
            assert!(!is_files_hash(bad), "{bad:?}");
        }
    }

    #[test]
    fn registries_of_all_three_kinds_are_understood_and_never_printed() {
        let aws = r#"{"type":"aws","awsAccessKeyId":"a","awsSecretAccessKey":"hush","awsRegion":"r"}"#;
        let gcp = r#"{"type":"gcp","serviceAccountJson":"hush"}"#;
        let basic = r#"{"type":"registry","username":"u","password":"hush"}"#;
        for text in [aws, gcp, basic] {
            let body: RegistryBody = serde_json::from_str(text).unwrap();
            let shown = format!("{body:?}");
            assert!(!format!("{shown} {:?}", body.auth()).contains("hush"));
        }
    }
}
