//! `isopod cluster token`, `tokens` and `revoke`: how machines may join.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use isopod_peer::JoinToken;
use isopod_store::ClusterToken;
use isopod_store::secrets::new_name;
use serde_json::json;

use super::open;
use crate::args::ClusterDatabaseArgs;
use crate::commands::show::print_table;
use crate::say::print_json_pretty;

const HOUR: Duration = Duration::from_secs(3600);

/// The one place where a token is printed.
pub(super) async fn create(state_dir: &Path, hours: u32, args: &ClusterDatabaseArgs) -> anyhow::Result<ExitCode> {
    let (identity, store) = open(state_dir, args).await?;
    let token = JoinToken::new(identity.fingerprint()?);
    store.add_cluster_token(&new_name(), &token.hash(), HOUR * hours).await?;
    store.close().await;
    say!("{token}");
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn list(state_dir: &Path, json: bool, args: &ClusterDatabaseArgs) -> anyhow::Result<ExitCode> {
    let (_, store) = open(state_dir, args).await?;
    let tokens = store.list_cluster_tokens().await?;
    store.close().await;
    if json {
        let shown: Vec<_> = tokens
            .iter()
            .map(|token| {
                let (expires, used_by) = (token.expires_at.to_rfc3339(), &token.used_by);
                json!({ "id": token.id, "status": status(token), "expires_at": expires, "used_by": used_by })
            })
            .collect();
        print_json_pretty(&shown);
        return Ok(ExitCode::SUCCESS);
    }
    let row = |token: &ClusterToken| {
        let used_by = token.used_by.clone().unwrap_or_default();
        vec![token.id.clone(), status(token).to_owned(), token.expires_at.to_rfc3339(), used_by]
    };
    print_table(&["ID", "STATUS", "EXPIRES", "USED BY"], &tokens.iter().map(row).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

fn status(token: &ClusterToken) -> &'static str {
    match token {
        ClusterToken { used_by: Some(_), .. } => "used",
        ClusterToken { is_expired: true, .. } => "expired",
        _ => "valid",
    }
}

pub(super) async fn revoke(state_dir: &Path, id: &str, args: &ClusterDatabaseArgs) -> anyhow::Result<ExitCode> {
    let (_, store) = open(state_dir, args).await?;
    let revoked = store.revoke_cluster_token(id).await?;
    store.close().await;
    if !revoked {
        say_error!("isopod: there is no token {id:?} that could still be used");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
