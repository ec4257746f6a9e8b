//! Takes, lists and deletes snapshots, and puts sandboxes back to them. [`Client::create`] accepts a snapshot's id as its
//! template.

use http::Method;
use isopod_guest_client::transport::Query;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};

/// The snapshot to take. The default has no name, and the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSnapshot {
    /// `name` or `name:tag`. A later snapshot with the same name takes its place.
    pub name: Option<String>,
    /// Whether to keep only the files, without the processes.
    pub files_only: bool,
}

/// A snapshot. Other servers than Isopod's give only the id and the names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// Its id, which [`NewSandbox::template`](super::NewSandbox::template) accepts.
    #[serde(rename = "snapshotID")]
    pub id: String,
    /// Its names.
    #[serde(default)]
    pub names: Vec<String>,
    /// The sandbox that it was taken of, which may be gone.
    #[serde(rename = "sandboxID", default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Whether it has the processes and their memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// What it takes on the server's disk, with what its files share with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How much of that is memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// When it was taken.
    #[serde(default, with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<OffsetDateTime>,
    /// The id of the build that it is, which names it also after its tag has moved on.
    #[serde(rename = "buildID", default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

/// Which snapshots to list. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListSnapshots {
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only the one with this name, `name:tag` or id.
    pub name: Option<String>,
}

const PAGE: u32 = 100;

impl ListSnapshots {
    fn path(&self, token: Option<&str>) -> String {
        Query::new()
            .with_some("sandboxID", self.sandbox.as_ref())
            .with_some("name", self.name.as_deref())
            .with_some("limit", Some(PAGE))
            .with_some("nextToken", token)
            .behind("/snapshots")
    }
}

impl Client {
    /// Takes a snapshot of a running sandbox, which stands still for a moment and goes on.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such sandbox, [`ApiError::Conflict`] if it is paused or its memory cannot be
    /// saved.
    pub async fn snapshot(&self, sandbox: &SandboxId, new: &NewSnapshot) -> Result<SnapshotInfo, ApiError> {
        let mut body = json!({ "memory": !new.files_only });
        if let Some(name) = &new.name {
            body["name"] = json!(name);
        }
        let call = Call::new(Method::POST, format!("/sandboxes/{sandbox}/snapshots")).json(&body);
        self.call(call.once(None)).await?.parse()
    }

    /// Lists snapshots, the latest first.
    ///
    /// # Errors
    /// If a page cannot be fetched.
    pub async fn list_snapshots(&self, which: &ListSnapshots) -> Result<Vec<SnapshotInfo>, ApiError> {
        let (mut all, mut token) = (Vec::new(), None);
        loop {
            let reply = self.call(Call::new(Method::GET, which.path(token.as_deref()))).await?;
            all.extend(reply.parse::<Vec<SnapshotInfo>>()?);
            let next = reply.headers.get("x-next-token").and_then(|value| value.to_str().ok());
            let next = next.filter(|next| !next.is_empty()).map(str::to_owned);
            if next.is_some() && next == token {
                return Err(ApiError::Protocol("the server returns the same page repeatedly".to_owned()));
            }
            match next {
                Some(next) => token = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Deletes a snapshot with all its tags. Sandboxes that were created from it go on. Returns false if there is none.
    ///
    /// # Errors
    /// If the server cannot be reached or fails.
    pub async fn remove_snapshot(&self, id: &str) -> Result<bool, ApiError> {
        self.remove_template(id).await
    }

    /// Puts a running sandbox back to a snapshot of it. It keeps its id, its tokens and its deadline. Only Isopod's
    /// servers support this.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such sandbox or snapshot, [`ApiError::Conflict`] if it is paused or the
    /// memory cannot be restored.
    pub async fn rollback(&self, sandbox: &SandboxId, snapshot: &str) -> Result<(), ApiError> {
        self.put_back(sandbox, json!({ "snapshotID": snapshot })).await
    }

    /// As [`Self::rollback`], but from the snapshot's files alone: its processes are not restored.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such sandbox or snapshot, [`ApiError::Conflict`] if it is paused.
    pub async fn rollback_files(&self, sandbox: &SandboxId, snapshot: &str) -> Result<(), ApiError> {
        self.put_back(sandbox, json!({ "snapshotID": snapshot, "memory": false })).await
    }

    async fn put_back(&self, sandbox: &SandboxId, body: serde_json::Value) -> Result<(), ApiError> {
        let call = Call::new(Method::POST, format!("/sandboxes/{sandbox}/rollback"));
        self.call(call.json(&body).once(None)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_replies_are_those_of_e2b() {
        let which = ListSnapshots { sandbox: Some("i1".parse().unwrap()), name: Some("a:v1".to_owned()) };
        assert_eq!(which.path(None), "/snapshots?sandboxID=i1&name=a%3Av1&limit=100");
        let info: SnapshotInfo = serde_json::from_str(r#"{ "snapshotID": "a:default", "names": ["t/a"] }"#).unwrap();
        assert_eq!((info.id.as_str(), info.memory), ("a:default", None));
        assert_eq!(serde_json::to_value(info).unwrap(), json!({ "snapshotID": "a:default", "names": ["t/a"] }));
    }
}
