//! Tests of `.env.example`, the environment of a server that people copy: it has every variable, and only values that
//! the program accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use clap::{CommandFactory as _, FromArgMatches as _};

use isopod_storage::StoreSettings;

use super::settings::Settings;
use crate::args::{Args, ServeArgs, StoreArgs, TunableArgs};
use crate::commands::storage::Choice;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.env.example");

/// Variables that `isopod` reads or sets, but that nobody writes into such a file.
const OTHERS: [&str; 7] = [
    "E2B_DEBUG",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
    "ISOPOD_ENV_PLAN",
];
/// The Python toolkit reads it.
const OF_PYTHON: &str = "E2B_TEMPLATE_ID";

fn text() -> String {
    std::fs::read_to_string(PATH).unwrap()
}

/// A line such as `# NAME=value`.
fn assignment(line: &str) -> Option<(String, String)> {
    let (name, value) = line.trim_start_matches('#').trim().split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

fn variables() -> BTreeMap<String, String> {
    text().lines().filter_map(assignment).collect()
}

/// Every name in `env_names.rs`.
fn known_names() -> BTreeSet<String> {
    let source = include_str!("../../env_names.rs");
    let lines = source.lines().filter(|line| line.starts_with("pub(crate) const"));
    let names = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned);
    names
        .filter(|name| !["SHELL", "HOME", "PATH"].contains(&name.as_str()) && !OTHERS.contains(&name.as_str()))
        .collect()
}

#[test]
fn the_example_environment_has_every_variable_and_no_other() {
    let mut known = known_names();
    assert!(known.len() > 40, "{known:?}");
    known.insert(OF_PYTHON.to_owned());
    let listed: Vec<(String, String)> = text().lines().filter_map(assignment).collect();
    assert_eq!(listed.len(), variables().len(), "a variable is there twice");
    assert_eq!(variables().into_keys().collect::<BTreeSet<_>>(), known);
    assert!(text().lines().all(|line| line.is_empty() || line.starts_with('#')), "a copy must change nothing");
}

/// The values of the variables that flags have too, parsed as those flags and resolved as the server does it.
#[test]
fn the_server_accepts_every_value_of_the_example_environment() {
    let mut given = variables();
    // There is no such file, and this test is not about its content.
    given.remove("ISOPOD_CONFIG");
    let storage = given.remove("ISOPOD_STORAGE");
    let mut command = Args::command();
    let serve = command.find_subcommand_mut("serve").unwrap().clone();
    let flag = |argument: &clap::Arg| {
        let name = argument.get_env()?.to_str()?;
        Some(format!("--{}={}", argument.get_long()?, given.get(name)?))
    };
    let flags: Vec<String> = serve.get_arguments().filter_map(flag).collect();
    assert!(flags.len() > 15, "{flags:?}");
    let matches = serve.try_get_matches_from(std::iter::once("serve".to_owned()).chain(flags)).unwrap();
    let args = ServeArgs::from_arg_matches(&matches).unwrap();
    let settings = Settings::resolve(given.get("ISOPOD_STATE_DIR").map(Into::into), args).unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:3000");
    assert_eq!(settings.storage.base_path, "/opt/sentient");

    // The keys of the bucket are read from the environment alone.
    let bucket = |storage: Option<String>, without: &[&str]| {
        let mut chosen = given.clone();
        chosen.retain(|name, _| !without.contains(&name.as_str()));
        let store = StoreArgs { storage, ..StoreArgs::default() };
        Choice::resolve(Path::new("/x"), &store, &TunableArgs::default(), &chosen).unwrap().settings.store
    };
    let names = ["ROMA_S3_BUCKET", "S3_BUCKET_NAME"];
    for (storage, without) in [(storage, &names[..]), (None, &names[..1]), (None, &names[1..])] {
        let StoreSettings::S3(found) = bucket(storage, without) else { panic!("not a bucket") };
        assert_eq!((found.bucket.as_str(), found.region.as_str()), ("your-s3-bucket-name", "us-east-1"));
        assert_eq!(found.endpoint.as_ref(), given.get("AWS_ENDPOINT_URL"));
    }
}

/// A shell and systemd read the values as they stand there.
#[test]
fn a_shell_reads_the_example_environment_as_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(".env");
    let lines: Vec<String> = variables().iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    std::fs::write(&path, lines.concat()).unwrap();
    let script = "set -a; . \"$0\"; env";
    let output = Command::new("sh").env_clear().args(["-c", script]).arg(&path).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let read: BTreeMap<String, String> = printed.lines().filter_map(assignment).collect();
    for (name, value) in variables() {
        assert_eq!(read.get(&name), Some(&value), "{name}");
    }
}
