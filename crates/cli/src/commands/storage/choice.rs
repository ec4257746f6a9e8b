//! Which workspace is meant: what was typed, the environment, the file, in this order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use isopod_storage::{BucketSettings, Credentials, Keys, StorageSettings, StoreSettings, Tunables};
use isopod_wire::compat::WORKSPACE_PATH;

use crate::args::{StoreArgs, TunableArgs};
use crate::env_names;
use crate::failure::Hint;

const DEFAULT_REGION: &str = "us-east-1";
const DEFAULT_PROFILE: &str = "default";
/// Below a state directory: everything of the daemon.
const DIRECTORY: &str = "storage";

/// The daemon's directory of a state directory.
pub(crate) fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join(DIRECTORY)
}

/// The workspace that is meant.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) settings: StorageSettings,
    /// Where it is seen, without a `/` at the end.
    pub(crate) base_path: String,
    /// Somebody asked for it; else it is the one that every state directory has.
    pub(crate) is_asked_for: bool,
}

impl Choice {
    pub(crate) fn resolve(
        state_dir: &Path,
        store: &StoreArgs,
        tunables: &TunableArgs,
        variables: &BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        let bucket = || env_names::BUCKETS.iter().find_map(|name| variable(name)).map(|name| format!("s3://{name}"));
        let wanted = store.storage.clone().filter(|text| !text.is_empty()).or_else(bucket);
        let is_asked_for = wanted.is_some();
        let place = match wanted {
            Some(text) => parse_store(&text, tunables, variables)?,
            None => StoreSettings::Directory(directory(state_dir).join("bucket")),
        };
        let base_path = store.storage_base_path.clone().unwrap_or_else(|| WORKSPACE_PATH.to_owned());
        Ok(Self {
            settings: StorageSettings { store: place, tunables: resolve_tunables(tunables)? },
            base_path: checked_base_path(&base_path)?,
            is_asked_for,
        })
    }
}

impl Choice {
    /// The bucket that it is stored in, if it is in one.
    pub(crate) fn bucket(&self) -> Option<&str> {
        match &self.settings.store {
            StoreSettings::S3(settings) => Some(&settings.bucket),
            StoreSettings::Directory(_) => None,
        }
    }
}

fn checked_base_path(text: &str) -> anyhow::Result<String> {
    let path = text.trim_end_matches('/');
    let is_plain = path.starts_with('/') && path[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !is_plain {
        return Err(Hint::new(
            format!("{text:?} cannot be the base path of the workspace"),
            "it is an absolute path such as /opt/sentient",
        ));
    }
    Ok(path.to_owned())
}

fn parse_store(
    text: &str,
    tunables: &TunableArgs,
    variables: &BTreeMap<String, String>,
) -> anyhow::Result<StoreSettings> {
    if let Some(path) = text.strip_prefix("dir:") {
        return Ok(StoreSettings::Directory(std::path::absolute(path)?));
    }
    let Some(rest) = text.strip_prefix("s3://") else {
        return Err(Hint::new(
            format!("{text:?} is no workspace"),
            "write s3://BUCKET, s3://BUCKET/PREFIX or dir:PATH",
        ));
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_matches('/');
    if bucket.is_empty() || prefix.split('/').any(|part| part.is_empty() && !prefix.is_empty()) {
        bail!("{text:?} names no bucket");
    }
    let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
    let region = tunables.region.clone().or_else(|| variable(env_names::AWS_REGION));
    let region = region.or_else(|| variable(env_names::AWS_DEFAULT_REGION));
    Ok(StoreSettings::S3(BucketSettings {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        region: region.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        endpoint: tunables.endpoint.clone().or_else(|| variable(env_names::AWS_ENDPOINT_URL)),
        keys: find_keys(bucket, &variable)?,
    }))
}

/// A bucket without keys is an error here, and not a workspace that fails later.
fn find_keys(bucket: &str, variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Keys> {
    match (variable(env_names::AWS_ACCESS_KEY_ID), variable(env_names::AWS_SECRET_ACCESS_KEY)) {
        (Some(access_key), Some(secret_key)) => {
            let session_token = variable(env_names::AWS_SESSION_TOKEN);
            return Ok(Credentials { access_key, secret_key, session_token }.into());
        }
        (None, None) => {}
        _ => bail!("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are only useful together"),
    }
    let usual = || variable("HOME").map(|home| format!("{home}/.aws/credentials"));
    let file = variable(env_names::AWS_SHARED_CREDENTIALS_FILE).or_else(usual).map(PathBuf::from);
    match file.filter(|file| file.exists()) {
        Some(path) => {
            let profile = variable(env_names::AWS_PROFILE).unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
            Ok(Keys::File { path, profile })
        }
        None => Err(Hint::new(
            format!("there are no keys for the bucket {bucket}"),
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE",
        )),
    }
}

fn resolve_tunables(args: &TunableArgs) -> anyhow::Result<Tunables> {
    let usual = Tunables::default();
    let seconds = [args.stat_cache_ttl, args.type_cache_ttl].into_iter().flatten().reduce(f64::min);
    let ttl = match seconds.map(Duration::try_from_secs_f64) {
        None => usual.ttl,
        Some(Ok(ttl)) => ttl,
        Some(Err(_)) => bail!("a TTL is a number of seconds, such as 1 or 0.5"),
    };
    Ok(Tunables {
        ttl,
        dir_mode: args.dir_mode.unwrap_or(usual.dir_mode),
        file_mode: args.file_mode.unwrap_or(usual.file_mode),
        idle_handles: args.max_idle_handles.unwrap_or(usual.idle_handles),
        cache_bytes: args.cache.map_or(usual.cache_bytes, |bytes| bytes.0),
        idle_exit: args.idle_exit.map_or(usual.idle_exit, Duration::from_secs),
        ..usual
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(storage: Option<&str>, variables: &[(&str, &str)]) -> anyhow::Result<Choice> {
        let store = StoreArgs { storage: storage.map(str::to_owned), storage_base_path: None };
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Choice::resolve(Path::new("/state"), &store, &TunableArgs::default(), &variables)
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];

    #[test]
    fn both_names_of_the_bucket_count() {
        for name in ["ROMA_S3_BUCKET", "S3_BUCKET_NAME"] {
            let choice = resolve(None, &[&KEYS[..], &[(name, "mine"), ("AWS_REGION", "eu-west-1")]].concat()).unwrap();
            let StoreSettings::S3(bucket) = &choice.settings.store else { panic!("{choice:?}") };
            assert_eq!((bucket.bucket.as_str(), bucket.region.as_str()), ("mine", "eu-west-1"));
            assert!(choice.is_asked_for);
        }
    }

    #[test]
    fn without_a_bucket_there_is_a_directory_and_a_bucket_wants_keys() {
        let choice = resolve(None, &KEYS).unwrap();
        assert_eq!(choice.settings.store, StoreSettings::Directory("/state/storage/bucket".into()));
        assert!(!choice.is_asked_for);
        assert!(resolve(Some("s3://mine"), &[]).unwrap_err().to_string().contains("no keys"));
        assert!(resolve(Some("s3://mine"), &KEYS[..1]).is_err());
    }

    #[test]
    fn a_prefix_is_part_of_the_name() {
        let choice = resolve(Some("s3://mine/a/b/"), &KEYS).unwrap();
        assert_eq!(choice.settings.store.describe(), "s3://mine/a/b");
        for bad in ["s3://", "s3:///x", "s3://b/a//b", "mine", "http://x"] {
            assert!(resolve(Some(bad), &KEYS).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_base_path_that_is_none_is_refused() {
        for bad in ["", "/", "x", "/a/../b", "/a//b"] {
            assert!(checked_base_path(bad).is_err(), "{bad:?}");
        }
        assert_eq!(checked_base_path("/opt/sentient/dev/").unwrap(), "/opt/sentient/dev");
    }
}
