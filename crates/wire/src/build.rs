//! Building templates: what a node is told to build, what it tells while it does, and what comes of it.
//!
//! A build has phases: the base it starts from, its steps (counted from 1, as E2B's SDKs count them) and the end, where
//! its start command is tried. Every message and every error names the phase it belongs to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::node::Secret;
use crate::{Bytes, Limits};

/// What to build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildSpec {
    /// What the build is called in logs.
    pub build: String,
    /// What it is built from.
    pub source: BuildSource,
    /// Use nothing that an earlier build made.
    pub force: bool,
    /// Runs in every new sandbox of the template, before its owner gets it.
    pub start_cmd: Option<String>,
    /// Is tried until it succeeds; then the sandbox is ready.
    pub ready_cmd: Option<String>,
    /// What each step may use.
    pub limits: Limits,
    /// For the whole build.
    pub timeout: Duration,
}

/// What a template is built from.
#[derive(Clone, Debug, PartialEq)]
pub enum BuildSource {
    /// The SDK's list of steps.
    Steps {
        /// What it starts from.
        from: BuildFrom,
        /// In order.
        steps: Vec<BuildStep>,
    },
    /// A Dockerfile with its context.
    Dockerfile(DockerfileSource),
}

/// A Dockerfile with its context.
#[derive(Clone, Debug, PartialEq)]
pub struct DockerfileSource {
    /// A directory that this node can read; none when the file copies nothing from outside.
    pub context: Option<PathBuf>,
    /// The name that errors show, `e2b.Dockerfile` for example.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Values for its `ARG`s.
    pub args: BTreeMap<String, String>,
    /// The stage to build; the last one when it is not said.
    pub target: Option<String>,
    /// For the registry of its images.
    pub auth: Option<RegistryAuth>,
}

/// What the SDK's steps start from.
#[derive(Clone, Debug, PartialEq)]
pub enum BuildFrom {
    /// An image in a registry, in the local store, or one that can be made of this host.
    Image {
        /// As people write it: `python:3.11`, `ghcr.io/a/b@sha256:…`.
        reference: String,
        /// For its registry.
        auth: Option<RegistryAuth>,
    },
    /// A template of this node, by its name or its id.
    Template(String),
}

/// How to sign in to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryAuth {
    /// A name and a password or token.
    Basic {
        /// Who.
        username: String,
        /// What only they know.
        password: Secret,
    },
    /// A service account of Google's cloud, as its JSON file.
    Gcp(Secret),
    /// Keys of Amazon's cloud, with which a password is asked for.
    Aws {
        /// The name of the key.
        access_key_id: String,
        /// The key.
        secret_access_key: Secret,
        /// Where the registry is.
        region: String,
    },
}

/// One step of the SDK's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildStep {
    /// What to do.
    pub instruction: BuildInstruction,
    /// Do this and all that follow, even if an earlier build did.
    pub force: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildInstruction {
    /// Runs a command with Bash.
    Run {
        /// The command.
        command: String,
        /// As whom, when not as the present user.
        user: Option<String>,
    },
    /// Puts files into the template.
    Copy {
        /// The path or pattern that the archive was made with, relative to its top.
        source: String,
        /// Where to; relative to the working directory, a directory if it ends in `/`.
        destination: String,
        /// `name` or `name:group`, when not the present user.
        owner: Option<String>,
        /// Permissions, when not those of the archive.
        mode: Option<u32>,
        /// A tar archive, perhaps compressed with gzip, that this node can read.
        archive: PathBuf,
    },
    /// Sets variables for the steps that follow and for sandboxes.
    Env(Vec<(String, String)>),
    /// Changes the working directory, and makes it.
    Workdir(String),
    /// Changes the user.
    User(String),
}

/// Why a step of the SDK's list cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// No such instruction.
    #[error("there is no instruction {0:?}")]
    Unknown(String),
    /// Too few or too many arguments, or an empty one.
    #[error("{kind} takes {wanted}, this one has {given}")]
    Arguments {
        /// Which instruction.
        kind: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// How many it has.
        given: usize,
    },
    /// A COPY whose files were not uploaded.
    #[error("COPY has no files")]
    NoFiles,
    /// Not octal permissions.
    #[error("{0:?} is not a file mode such as 0755")]
    Mode(String),
}

impl BuildStep {
    /// Understands a step as the SDKs send it. `archive` holds the files of a COPY.
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
        "USER" => at(0).map(BuildInstruction::User).ok_or(wants("USER", "a name")),
        _ => Err(StepError::Unknown(kind.to_owned())),
    }
}

fn parse_mode(text: String) -> Result<u32, StepError> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(StepError::Mode(text)),
    }
}

/// A part of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildPhase {
    /// Getting what it starts from.
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

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildLevel {
    /// Output of programs.
    Debug,
    /// What the builder does.
    Info,
    /// What may surprise.
    Warn,
    /// What ended the build.
    Error,
}

/// What a build tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildEvent {
    /// When.
    pub at: SystemTime,
    /// How much it matters.
    pub level: BuildLevel,
    /// In which part.
    pub phase: BuildPhase,
    /// One line.
    pub message: String,
}

/// What a build gave. Kept by the node under its id, also over a restart, until it is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltTemplate {
    /// Follows from the content: the same files and settings have the same id.
    pub id: String,
    /// Its layers, lowest first.
    pub layers: Vec<String>,
    /// Variables of its sandboxes.
    pub env: BTreeMap<String, String>,
    /// Whose name commands run under when nobody else is named.
    pub user: String,
    /// Where they run.
    pub workdir: String,
    /// Runs in every new sandbox.
    pub start_cmd: Option<String>,
    /// Tells when it is ready.
    pub ready_cmd: Option<String>,
    /// What its sandboxes usually get: those are kept ready.
    pub limits: Limits,
    /// What its own layers take on the disk.
    pub size: Bytes,
    /// When it was built first.
    pub made_at: SystemTime,
}

/// A template that a node keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptTemplate {
    /// What was built.
    pub template: BuiltTemplate,
    /// Whether sandboxes stand on it now.
    pub in_use: bool,
}

/// Why a build failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BuildFailure {
    /// The request, the file or the context is wrong.
    Invalid,
    /// A step ended with an error.
    Step,
    /// The base cannot be had.
    Image,
    /// It took too long.
    TimedOut,
    /// Somebody cancelled it.
    Cancelled,
    /// Something broke on this side.
    Internal,
}

/// Why there is no template. Nothing of it is left but steps that the next build can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", self.place())]
pub struct BuildError {
    /// What kind of failure.
    pub failure: BuildFailure,
    /// In which part.
    pub phase: BuildPhase,
    /// In which file, and on which line of it, counted from 1.
    pub place: Option<(String, u32)>,
    /// What went wrong.
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
    /// Not here.
    #[error("template {0:?} is not on this node")]
    NotFound(String),
    /// Sandboxes stand on it.
    #[error("template {0:?} is in use")]
    InUse(String),
    /// Something broke on the way.
    #[error("could not remove template {id:?}")]
    Failed {
        /// Which.
        id: String,
        /// Why.
        #[source]
        source: std::io::Error,
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
    fn steps_that_say_too_little_are_refused() {
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
    fn steps_of_the_sdk_are_understood() {
        let copy = ["a.txt", "/app/", "", "0644"].map(ToString::to_string);
        let step = BuildStep::parse("COPY", &copy, Some("/x.tar".into()), true).unwrap();
        let BuildInstruction::Copy { owner, mode, .. } = step.instruction else { panic!("not a copy") };
        assert_eq!((owner, mode, step.force), (None, Some(0o644), true));
        let run = BuildInstruction::Run { command: "id".to_owned(), user: Some("root".to_owned()) };
        assert_eq!(parse("RUN", &["id", "root"]), Ok(run));
        let variables = [("A", "1"), ("B", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse("ENV", &["A", "1", "B", ""]), Ok(BuildInstruction::Env(variables.to_vec())));
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
