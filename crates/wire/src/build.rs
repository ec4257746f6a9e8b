//! Template builds: what a node should build, the events of a build, and its result.
//!
//! A build has phases: fetching the base, the steps (counted from 1, as in E2B's SDKs) and the final phase, which tries the
//! start command. Every event and every error names its phase.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Limits, Secret};

/// What to build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildSpec {
    /// The name of the build in logs.
    pub build: String,
    /// What to build it from.
    pub source: BuildSource,
    /// Do not reuse results of earlier builds.
    pub force: bool,
    /// Builds reuse the steps of earlier builds with the same scope. `None` is a scope too.
    pub cache_scope: Option<String>,
    /// If an image can't be had, use this host's files instead, even if they are of another version.
    pub allow_host_base: bool,
    /// The command that runs in every new sandbox of the template before its owner gets it.
    pub start_cmd: Option<String>,
    /// The command that is repeated until it succeeds; then the sandbox is ready.
    pub ready_cmd: Option<String>,
    /// The resources of each step.
    pub limits: Limits,
    /// The time limit for the whole build.
    pub timeout: Duration,
}

/// What a template is built from.
#[derive(Clone, Debug, PartialEq)]
pub enum BuildSource {
    /// A list of steps from the SDK.
    Steps {
        /// What the first step starts from.
        from: BuildFrom,
        /// The steps, in order.
        steps: Vec<BuildStep>,
    },
    /// A Dockerfile with its context.
    Dockerfile(DockerfileSource),
}

/// A Dockerfile with its context.
#[derive(Clone, Debug, PartialEq)]
pub struct DockerfileSource {
    /// A directory that the node can read. `None` if the Dockerfile copies nothing from outside.
    pub context: Option<PathBuf>,
    /// The name in error messages, for example `e2b.Dockerfile`.
    pub name: String,
    /// The text of the Dockerfile.
    pub text: String,
    /// The values of its `ARG`s.
    pub args: BTreeMap<String, String>,
    /// The stage to build. `None` means the last one.
    pub target: Option<String>,
    /// Credentials for the registry of its images.
    pub auth: Option<RegistryAuth>,
}

/// The base of the SDK's steps.
#[derive(Clone, Debug, PartialEq)]
pub enum BuildFrom {
    /// An image in a registry or in the local store, or one that the node makes from its host.
    Image {
        /// The reference as users write it: `python:3.11`, `ghcr.io/a/b@sha256:…`.
        reference: String,
        /// Credentials for its registry.
        auth: Option<RegistryAuth>,
    },
    /// A template of this node, by name or id.
    Template(String),
}

/// Credentials for a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryAuth {
    /// A user name with a password or token.
    Basic {
        /// The user name.
        username: String,
        /// The password or token.
        password: Secret,
    },
    /// A service account of Google Cloud, as its JSON file.
    Gcp(Secret),
    /// AWS keys, which are exchanged for a password.
    Aws {
        /// The id of the key.
        access_key_id: String,
        /// The secret key.
        secret_access_key: Secret,
        /// The region of the registry.
        region: String,
    },
}

/// One step of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildStep {
    /// What the step does.
    pub instruction: BuildInstruction,
    /// Run this step and all later ones even if an earlier build has run them.
    pub force: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildInstruction {
    /// Runs a command with Bash.
    Run {
        /// The command.
        command: String,
        /// The user that runs it, if not the current one.
        user: Option<String>,
    },
    /// Copies files into the template.
    Copy {
        /// The path or pattern that the archive was created with, relative to its root.
        source: String,
        /// The destination, relative to the working directory; a directory if it ends in `/`.
        destination: String,
        /// The owner as `name` or `name:group`, if not the current user.
        owner: Option<String>,
        /// The permissions, if not those of the archive.
        mode: Option<u32>,
        /// A tar archive that the node can read; it may be compressed with gzip.
        archive: PathBuf,
    },
    /// Sets environment variables for later steps and for sandboxes.
    Env(Vec<(String, String)>),
    /// Changes the working directory; creates it if it is missing.
    Workdir(String),
    /// Changes the user; adds it if it is missing.
    User {
        /// Its name.
        name: String,
        /// Whether the user may use sudo.
        can_sudo: bool,
    },
}

/// Why a step is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The instruction does not exist.
    #[error("unknown instruction {0:?}")]
    Unknown(String),
    /// Too few or too many arguments, or an empty one.
    #[error("{kind} takes {wanted}, but got {given} arguments")]
    Arguments {
        /// The instruction.
        kind: &'static str,
        /// The arguments it takes.
        wanted: &'static str,
        /// The number of arguments given.
        given: usize,
    },
    /// The files of a COPY were not uploaded.
    #[error("the files of COPY were not uploaded")]
    NoFiles,
    /// The permissions are not an octal number.
    #[error("{0:?} is not a file mode such as 0755")]
    Mode(String),
}

impl BuildStep {
    /// Parses a step as the SDKs send it. `archive` holds the files of a COPY.
    pub fn parse(kind: &str, arguments: &[String], archive: Option<PathBuf>, force: bool) -> Result<Self, StepError> {
        Ok(Self { instruction: parse_instruction(kind, arguments, archive)?, force })
    }
}

fn parse_instruction(
    kind: &str,
    arguments: &[String],
    archive: Option<PathBuf>,
) -> Result<BuildInstruction, StepError> {
    let given = arguments.len();
    let at = |index: usize| arguments.get(index).filter(|text| !text.is_empty()).cloned();
    let wants = |kind, wanted| StepError::Arguments { kind, wanted, given };
    match kind.to_ascii_uppercase().as_str() {
        "RUN" if given <= 2 => {
            let command = at(0).ok_or(wants("RUN", "a command"))?;
            Ok(BuildInstruction::Run { command, user: at(1) })
        }
        "RUN" => Err(wants("RUN", "a command and perhaps a user")),
        "COPY" | "ADD" => {
            let (Some(source), Some(destination)) = (at(0), at(1)) else {
                return Err(wants("COPY", "a source and a destination"));
            };
            let archive = archive.ok_or(StepError::NoFiles)?;
            let mode = at(3).map(parse_mode).transpose()?;
            Ok(BuildInstruction::Copy { source, destination, owner: at(2), mode, archive })
        }
        "ENV" if given > 0 && given.is_multiple_of(2) => {
            let pairs = arguments.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            Ok(BuildInstruction::Env(pairs.collect()))
        }
        "ENV" => Err(wants("ENV", "names, each with a value")),
        "WORKDIR" => at(0).map(BuildInstruction::Workdir).ok_or(wants("WORKDIR", "a directory")),
        "USER" => {
            let name = at(0).ok_or(wants("USER", "a name"))?;
            Ok(BuildInstruction::User { name, can_sudo: at(1).as_deref() == Some("true") })
        }
        _ => Err(StepError::Unknown(kind.to_owned())),
    }
}

fn parse_mode(text: String) -> Result<u32, StepError> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(StepError::Mode(text)),
    }
}

/// A phase of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildPhase {
    /// Fetching the base.
    Base,
    /// A step, counted from 1.
    Step(u32),
    /// Trying the start command.
    Finalize,
}

impl fmt::Display for BuildPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Step(number) => write!(f, "{number}"),
            Self::Finalize => f.write_str("finalize"),
        }
    }
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildLevel {
    /// The output of programs.
    Debug,
    /// An action of the builder.
    Info,
    /// Something unexpected that did not stop the build.
    Warn,
    /// The error that ended the build.
    Error,
}

/// A line in the log of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildEvent {
    /// When it happened.
    pub at: SystemTime,
    /// Its severity.
    pub level: BuildLevel,
    /// The phase it belongs to.
    pub phase: BuildPhase,
    /// The text, one line.
    pub message: String,
}

/// The result of a build. The node keeps it under its id, across restarts, until it is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltTemplate {
    /// Derived from the content: the same files and settings have the same id.
    pub id: String,
    /// The layers, lowest first.
    pub layers: Vec<String>,
    /// The environment variables of its sandboxes.
    pub env: BTreeMap<String, String>,
    /// The default user of commands.
    pub user: String,
    /// The default working directory of commands.
    pub workdir: String,
    /// The command that runs in every new sandbox.
    pub start_cmd: Option<String>,
    /// The command that succeeds once the sandbox is ready.
    pub ready_cmd: Option<String>,
    /// The default resources of its sandboxes. The pool holds sandboxes with these.
    pub limits: Limits,
    /// The disk space of its own layers.
    pub size: Bytes,
    /// When it was first built.
    pub made_at: SystemTime,
}

/// A built template on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptTemplate {
    /// The template.
    pub template: BuiltTemplate,
    /// Whether sandboxes use it now.
    pub in_use: bool,
}

/// Why a build failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BuildFailure {
    /// The request, the Dockerfile or the context is not valid.
    Invalid,
    /// A step failed.
    Step,
    /// The base is not available.
    Image,
    /// The build exceeded its time limit.
    TimedOut,
    /// The build was cancelled.
    Cancelled,
    /// The node failed.
    Internal,
}

/// Why a build failed. Nothing is left of it except steps that the next build can reuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", self.place())]
pub struct BuildError {
    /// The kind of failure.
    pub failure: BuildFailure,
    /// The phase it belongs to.
    pub phase: BuildPhase,
    /// The file and the line in it, counted from 1.
    pub place: Option<(String, u32)>,
    /// What failed.
    pub message: String,
}

impl BuildError {
    fn place(&self) -> String {
        match &self.place {
            Some((file, line)) => format!("{file}:{line}: "),
            None => String::new(),
        }
    }
}

/// Why a template was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveTemplateError {
    /// The template is not on this node.
    #[error("template {0:?} is not on this node")]
    NotFound(String),
    /// Sandboxes use it.
    #[error("template {0:?} is in use")]
    InUse(String),
    /// The removal failed.
    #[error("could not remove template {id:?}")]
    Failed {
        /// The template.
        id: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// How to export a built template as an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// The id of the template on the node.
    pub template: String,
    /// The name of the image in the archive, such as `web:v1`.
    pub name: String,
    /// Combine all layers into one. It has no files that a later layer removed or replaced.
    pub squash: bool,
}

/// An image as an OCI layout in a tar archive.
#[derive(Debug)]
pub struct ExportedImage {
    /// The archive, from its start. The file has no name: it is gone when it is closed.
    pub file: File,
    /// Its size in bytes.
    pub size: u64,
    /// The digest of the image's manifest.
    pub digest: String,
}

/// Why a template was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The template is not on this node.
    #[error("template {0:?} is not on this node")]
    NotFound(String),
    /// The host's own files are below its layers.
    #[error(
        "the template contains files of the server itself, so it cannot become an image; build it from an image, as \
         with FROM debian:12"
    )]
    OnHost,
    /// Another team's template is below its layers. They may contain files that the team has removed.
    #[error(
        "the template's layers may be another team's, because it is built on a template of that team or by an earlier \
         version of Isopod; export it as one layer, with squash"
    )]
    OtherTeamsLayers,
    /// The name is not one of an image.
    #[error("{0}")]
    Name(String),
    /// The template's files cannot be expressed as an image, or are too many.
    #[error("{0}")]
    Files(String),
    /// The export failed.
    #[error("could not export template {id:?}")]
    Failed {
        /// The template.
        id: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: &str, arguments: &[&str]) -> Result<BuildInstruction, StepError> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        BuildStep::parse(kind, &arguments, None, false).map(|step| step.instruction)
    }

    #[test]
    fn steps_with_missing_arguments_are_refused() {
        for (kind, arguments) in [
            ("RUN", &[][..]),
            ("RUN", &[""]),
            ("RUN", &["a", "b", "c"]),
            ("COPY", &["a"]),
            ("ENV", &[]),
            ("ENV", &["a"]),
            ("WORKDIR", &[]),
            ("USER", &[""]),
        ] {
            assert!(matches!(parse(kind, arguments), Err(StepError::Arguments { .. })), "{kind} {arguments:?}");
        }
        assert_eq!(parse("JUMP", &["high"]), Err(StepError::Unknown("JUMP".to_owned())));
        assert_eq!(parse("COPY", &["a", "b"]), Err(StepError::NoFiles));
    }

    #[test]
    fn steps_of_the_sdk_are_parsed() {
        let copy = ["a.txt", "/app/", "", "0644"].map(ToString::to_string);
        let step = BuildStep::parse("COPY", &copy, Some("/x.tar".into()), true).unwrap();
        let BuildInstruction::Copy { owner, mode, .. } = step.instruction else { panic!("not a copy") };
        assert_eq!((owner, mode, step.force), (None, Some(0o644), true));
        let run = BuildInstruction::Run { command: "id".to_owned(), user: Some("root".to_owned()) };
        assert_eq!(parse("RUN", &["id", "root"]), Ok(run));
        let variables = [("A", "1"), ("B", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse("ENV", &["A", "1", "B", ""]), Ok(BuildInstruction::Env(variables.to_vec())));
        for (arguments, can_sudo) in [(&["app"][..], false), (&["app", "false"], false), (&["app", "true"], true)] {
            assert_eq!(parse("USER", arguments), Ok(BuildInstruction::User { name: "app".to_owned(), can_sudo }));
        }
    }

    #[test]
    fn an_error_points_at_its_line() {
        let error = BuildError {
            failure: BuildFailure::Invalid,
            phase: BuildPhase::Step(2),
            place: Some(("e2b.Dockerfile".to_owned(), 7)),
            message: "no such stage".to_owned(),
        };
        assert_eq!(error.to_string(), "e2b.Dockerfile:7: no such stage");
    }
}
