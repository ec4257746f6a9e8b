//! `isopod key`: API keys, through a server that knows one already, or directly in this machine's state directory.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use isopod_client::sandbox::{ApiKeyInfo, NewKey};
use isopod_store::{KeyGrant, LocalKey, Rotation, Scope};
use serde::Serialize;
use serde_json::json;
use time::format_description::well_known::Rfc3339;

use super::database;
use super::remote::{client, explain};
use super::show::{print_table, printable};
use crate::args::{KeyArgs, KeyCommand, KeyCommon, ScopeArg};
use crate::say::{print_json, print_json_pretty};

pub(super) async fn run(state_dir: &Path, args: KeyArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        KeyCommand::Create { name, scope, agent, expires_days, common } => {
            let wanted = wanted(scope, agent, expires_days)?;
            create(state_dir, &name, &wanted, &common).await
        }
        KeyCommand::Rotate { id, overlap_hours, common } => rotate(state_dir, &id, HOUR * overlap_hours, &common).await,
        KeyCommand::List { common } => list(state_dir, &common).await,
        KeyCommand::Revoke { ids, common } => revoke(state_dir, &ids, &common).await,
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn wanted(scope: ScopeArg, agent: Option<String>, expires_days: Option<u32>) -> anyhow::Result<KeyGrant> {
    let scope = match (scope, agent) {
        (ScopeArg::Agent, Some(agent)) => Scope::Agent(agent),
        (ScopeArg::Team, None) => Scope::Team,
        (ScopeArg::ReadOnly, None) => Scope::ReadOnly,
        (ScopeArg::Admin, None) => Scope::Admin,
        _ => bail!("--agent goes with --scope agent, and only with it"),
    };
    Ok(KeyGrant { scope, lifetime: expires_days.map(|days| HOUR * 24 * days) })
}

async fn create(state_dir: &Path, name: &str, wanted: &KeyGrant, common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let (id, key) = match common.local {
        true => {
            let store = database::open(state_dir, &common.database).await?;
            let (made, key) = store.create_local_key_with(name, wanted).await?;
            store.close().await;
            (made.id, key.0)
        }
        false => {
            let made = client(&common.server)?.create_key_with(&new_key(name, wanted)).await.map_err(explain)?;
            (made.info.id, made.key)
        }
    };
    print_key(common, &id, name, &key);
    Ok(ExitCode::SUCCESS)
}

fn new_key<'a>(name: &'a str, wanted: &'a KeyGrant) -> NewKey<'a> {
    NewKey {
        name,
        scope: (wanted.scope != Scope::Team).then(|| wanted.scope.text()),
        agent_id: wanted.scope.agent(),
        expires_in: wanted.lifetime.map(|lifetime| lifetime.as_secs()),
    }
}

async fn rotate(state_dir: &Path, id: &str, overlap: Duration, common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let made = match common.local {
        true => match database::open(state_dir, &common.database).await?.rotate_local_key(id, overlap).await? {
            Rotation::Done(made) => Some((made.0.id, made.0.name, made.1.0)),
            Rotation::NotFound | Rotation::Forbidden => None,
        },
        false => {
            let made = client(&common.server)?.rotate_key(id, overlap).await.map_err(explain)?;
            made.map(|made| (made.info.id, made.info.name, made.key))
        }
    };
    let Some((new_id, name, key)) = made else {
        say_error!("isopod: there is no key {id:?}");
        return Ok(ExitCode::FAILURE);
    };
    print_key(common, &new_id, &name, &key);
    Ok(ExitCode::SUCCESS)
}

/// The one place where a key is printed.
fn print_key(common: &KeyCommon, id: &str, name: &str, key: &str) {
    match common.json {
        true => print_json(&json!({ "id": id, "name": name, "key": key })),
        false => say!("{key}"),
    }
}

async fn list(state_dir: &Path, common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let keys: Vec<Shown> = match common.local {
        true => database::open(state_dir, &common.database)
            .await?
            .list_local_keys()
            .await?
            .into_iter()
            .map(Shown::from)
            .collect(),
        false => client(&common.server)?.list_keys().await.map_err(explain)?.into_iter().map(Shown::from).collect(),
    };
    if common.json {
        print_json_pretty(&keys);
    } else {
        print_table(
            &["ID", "NAME", "SCOPE", "CREATED", "LAST USED", "EXPIRES"],
            &keys.iter().map(Shown::row).collect::<Vec<_>>(),
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn revoke(state_dir: &Path, ids: &[String], common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let mut missing = false;
    for id in ids {
        let found = match common.local {
            true => database::open(state_dir, &common.database).await?.revoke_local_key(id).await?,
            false => client(&common.server)?.revoke_key(id).await.map_err(explain)?,
        };
        match found {
            true => say!("{id}"),
            false => say_error!("isopod: there is no key {id:?}"),
        }
        missing |= !found;
    }
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A key as it is shown, wherever it comes from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    id: String,
    name: String,
    created_at: String,
    last_used: Option<String>,
    scope: String,
    expires_at: Option<String>,
}

impl Shown {
    fn row(&self) -> Vec<String> {
        let last_used = self.last_used.clone().unwrap_or_else(|| "never".to_owned());
        let expires = self.expires_at.clone().unwrap_or_else(|| "never".to_owned());
        let name = printable(&self.name);
        vec![self.id.clone(), name, printable(&self.scope), self.created_at.clone(), last_used, expires]
    }
}

impl From<LocalKey> for Shown {
    fn from(key: LocalKey) -> Self {
        let scope = key.agent.map_or(key.scope.clone(), |agent| format!("{}:{agent}", key.scope));
        let (created_at, last_used, expires_at) = (key.created_at, key.last_used, key.expires_at);
        Self { id: key.id, name: key.name, created_at, last_used, scope, expires_at }
    }
}

impl From<ApiKeyInfo> for Shown {
    fn from(key: ApiKeyInfo) -> Self {
        let text = |time: time::OffsetDateTime| time.format(&Rfc3339).unwrap_or_default();
        let scope = key.scope.unwrap_or_else(|| "team".to_owned());
        let scope = key.agent_id.map_or(scope.clone(), |agent| format!("{scope}:{agent}"));
        let (created_at, last_used, expires_at) =
            (text(key.created_at), key.last_used.map(text), key.expires_at.map(text));
        Self { id: key.id, name: key.name, created_at, last_used, scope, expires_at }
    }
}
