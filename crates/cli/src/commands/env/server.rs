//! Which server, and with which key: what was said, or else the one that uses the state directory.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use isopod_client::ApiError;
use isopod_client::sandbox::LocalNames;
use isopod_store::{KeyGrant, Scope};

use crate::args::{EnvArgs, ServerArgs};
use crate::commands::remote::{LOCAL, client, explain, is_this_machine};
use crate::commands::running::RunningServer;
use crate::commands::{ENV_DIRECTORY, database};
use crate::failure::Hint;

const KEY_FILE: &str = "key";
const KEY_NAME: &str = "isopod env";

/// A server that has answered.
#[derive(Debug)]
pub(super) struct FoundServer {
    pub(super) key: String,
    pub(super) api_url: String,
    /// Whether it runs on this machine.
    pub(super) is_here: bool,
    pub(super) sandbox_url: Option<String>,
    /// The authority of its certificate, where that is this machine's own, and all that this machine trusts besides.
    pub(super) trust: Option<Trusted>,
    pub(super) names: LocalNames,
}

#[derive(Debug)]
pub(super) struct Trusted {
    pub(super) authority: PathBuf,
    pub(super) bundle: PathBuf,
}

pub(super) async fn find_server(state_dir: &Path, args: &EnvArgs) -> anyhow::Result<FoundServer> {
    let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    let running = RunningServer::of(state_dir).map(|running| running.api_url);
    let api_url = given(&args.api_url).or_else(|| running.clone());
    let api_url = api_url.unwrap_or_else(|| LOCAL.to_owned());
    let is_here = running.as_ref() == Some(&api_url) || is_this_machine(&api_url);
    let trust = local_trust(state_dir, &api_url);
    let mut server = ServerArgs {
        api_key: given(&args.api_key),
        sandbox_url: is_this_machine(&api_url).then(|| api_url.clone()),
        ca_file: args.ca_file.clone().or_else(|| trust.as_ref().map(|trust| trust.authority.clone())),
        domain: None,
        api_url: Some(api_url.clone()),
    };
    let names = ask_with_some_key(state_dir, args, &mut server).await?;
    let key = server.api_key.context("the server was asked with a key")?;
    Ok(FoundServer { key, api_url, is_here, sandbox_url: server.sandbox_url, trust, names })
}

/// Where the server's certificate is of this machine's own authority.
fn local_trust(state_dir: &Path, api_url: &str) -> Option<Trusted> {
    let directory = state_dir.join("tls");
    let (authority, bundle) = (directory.join("ca.pem"), directory.join("bundle.pem"));
    let is_used = api_url.starts_with("https://") && is_this_machine(api_url) && authority.is_file();
    is_used.then_some(Trusted { authority, bundle })
}

/// Tries the key that was given, the one that was made for this before, and a new one. The last two only root can have. What
/// was given may be a key of E2B's cloud, which programs of this machine have used so far.
async fn ask_with_some_key(state_dir: &Path, args: &EnvArgs, server: &mut ServerArgs) -> anyhow::Result<LocalNames> {
    let path = state_dir.join(ENV_DIRECTORY).join(KEY_FILE);
    let given = server.api_key.clone();
    let kept = fs::read_to_string(&path).ok().map(|text| text.trim().to_owned()).filter(|key| !key.is_empty());
    for key in given.iter().chain(&kept) {
        server.api_key = Some(key.clone());
        match ask(server).await? {
            Err(ApiError::Unauthorized { .. }) if is_root() && given.as_ref() == Some(key) => {
                say_error!("isopod: E2B_API_KEY is no key of this server; a key of its own is used instead");
            }
            Err(ApiError::Unauthorized { .. }) if is_root() => {}
            asked => return asked.map_err(explain_old_server),
        }
    }
    if !is_root() {
        return Err(Hint::new(
            "there is no API key",
            "set E2B_API_KEY to the key that isopod serve printed, or run: sudo isopod env",
        ));
    }
    let key = make_key(state_dir, args, &path).await?;
    server.api_key = Some(key);
    ask(server).await?.map_err(explain_old_server)
}

async fn ask(server: &ServerArgs) -> anyhow::Result<Result<LocalNames, ApiError>> {
    Ok(client(server)?.without_retries().local_names().await)
}

fn explain_old_server(error: ApiError) -> anyhow::Error {
    match error {
        ApiError::NotFound { .. } => Hint::new(
            "the server does not know what isopod env asks for: it is no Isopod, or an older version",
            "restart it with this version, or paste the variables that it printed",
        ),
        other => explain(other),
    }
}

/// Keys are stored as hashes, so that a key that exists cannot be printed: this one is kept in a file for root.
async fn make_key(state_dir: &Path, args: &EnvArgs, path: &Path) -> anyhow::Result<String> {
    let store = database::open(state_dir, &args.database).await?;
    let grant = KeyGrant { scope: Scope::Team, lifetime: None };
    let (_, key) = store.create_local_key_with(KEY_NAME, &grant).await?;
    store.close().await;
    keep(path, &key.0).with_context(|| format!("could not write {}", path.display()))?;
    Ok(key.0)
}

fn keep(path: &Path, key: &str) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let temporary = path.with_extension("new");
    // One that a killed process left may have other permissions.
    let _ = fs::remove_file(&temporary);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(key.as_bytes())?;
    fs::rename(&temporary, path)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
