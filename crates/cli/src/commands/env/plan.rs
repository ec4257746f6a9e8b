//! What a command is to see differently from all others. It is worked out by the process that asked the server, and handed
//! to the one that makes the view in an environment variable: it holds no secret.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use isopod_client::sandbox::ServedNames;
use serde::{Deserialize, Serialize};

use crate::commands::docker;
use crate::commands::tls::system_bundle;
use crate::env_names;
use crate::failure::Hint;

/// Variables that name a file of trusted authorities, each read by other programs: the first counts for most.
pub(super) const TRUST_VARIABLES: [&str; 5] = [
    env_names::SSL_CERT_FILE,
    env_names::REQUESTS_CA_BUNDLE,
    env_names::CURL_CA_BUNDLE,
    env_names::NODE_EXTRA_CA_CERTS,
    env_names::DENO_CERT,
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The only resolver.
    pub(super) address: Ipv4Addr,
    pub(super) domains: Vec<String>,
    /// In PEM.
    pub(super) authority: String,
    /// Files of trusted authorities, which have one more for the command.
    pub(super) bundles: Vec<PathBuf>,
    /// That of the system, for variables that are not set.
    pub(super) system_bundle: PathBuf,
    /// Whether `docker` is our stand-in for it.
    pub(super) has_docker: bool,
}

impl Plan {
    pub(super) fn new(names: &ServedNames, variable: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<Self> {
        let Some(system_bundle) = system_bundle() else {
            return Err(Hint::new(
                "this machine has no file of trusted authorities that the server's could be added to",
                "install the package ca-certificates",
            ));
        };
        let mut bundles = vec![system_bundle.clone()];
        for named in TRUST_VARIABLES.iter().filter_map(|name| named_bundle(&variable, name)) {
            if !bundles.iter().any(|known| is_same_file(known, &named)) {
                bundles.push(named);
            }
        }
        let ServedNames { domains, address, authority } = names.clone();
        let has_docker = !is_on_path(docker::NAME, variable(env_names::PATH));
        Ok(Self { address, domains, authority, bundles, system_bundle, has_docker })
    }

    pub(super) fn to_text(&self) -> anyhow::Result<String> {
        serde_json::to_string(self).context("a path cannot be written")
    }

    pub(super) fn from_environment() -> anyhow::Result<Self> {
        let text = std::env::var(env_names::ENV_PLAN).context("this is for isopod env to start")?;
        serde_json::from_str(&text).context("this is for isopod env to start")
    }
}

fn is_on_path(program: &str, path: Option<OsString>) -> bool {
    let mut directories = path.as_ref().map(std::env::split_paths).into_iter().flatten();
    directories.any(|directory| {
        directory.join(program).metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    })
}

/// The file that a variable names, if it can be read: one that cannot be read is of no use to the command either.
pub(super) fn named_bundle(variable: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    let path = variable(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())?;
    let path = std::path::absolute(path).ok()?;
    std::fs::read_to_string(&path).is_ok().then_some(path)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().is_some_and(|one| Some(one) == other.canonicalize().ok())
}
