//! The rows of builds, and the tags that name them. A tag moves to a build in the transaction that marks the build as
//! ready.

use isopod_wire::{Limits, SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{Row, Transaction, query};

/// One attempt to build a template.
#[derive(Clone, Debug, PartialEq)]
pub struct Build {
    pub id: String,
    pub template: String,
    pub status: BuildStatus,
    /// The tags that it gets once it is ready.
    pub tags: Vec<String>,
    pub limits: Limits,
    /// The Dockerfile and commands that a client of the first API version sent in advance, as JSON.
    pub legacy: Option<String>,
    /// The template that the node built.
    pub node_template: Option<String>,
    pub size: Option<i64>,
    /// How much of the size is saved memory, if it is a snapshot.
    pub memory_size: Option<i64>,
    pub reason: Option<BuildReason>,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// What it was taken of, if it is a snapshot.
    pub snapshot: Option<SnapshotSource>,
}

/// What a build of a snapshot was taken of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSource {
    /// Its id on the node.
    pub id: SnapshotId,
    /// Whether it has the processes and their memory, and not only the files.
    pub has_memory: bool,
    /// The sandbox, which may be gone.
    pub sandbox: SandboxId,
    /// The kernel features that the sandbox had asked for, as in its metadata.
    pub features: Option<String>,
}

/// The progress of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildStatus {
    /// Requested, but the client has not yet sent the steps.
    Requested,
    /// Waits for its turn.
    Queued,
    Building,
    Ready,
    Failed,
}

/// Why a build failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildReason {
    pub message: String,
    /// `base`, `finalize`, or the number of a step, counted from one.
    pub step: Option<String>,
}

/// A name for a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub tag: String,
    pub build: String,
    pub assigned_at: Timestamp,
}

impl SnapshotSource {
    /// Reads the four columns from this index on.
    fn read(row: &Row, first: usize) -> Result<Option<Self>, StoreError> {
        let Some(id) = row.get::<Option<&str>>(first) else { return Ok(None) };
        let corrupt = |value: &str| StoreError::Corrupt { what: "a snapshot", value: value.to_owned() };
        let sandbox: &str = row.get::<Option<&str>>(first + 2).unwrap_or_default();
        Ok(Some(Self {
            id: id.parse().map_err(|_| corrupt(id))?,
            has_memory: row.get::<Option<bool>>(first + 1).unwrap_or_default(),
            sandbox: sandbox.parse().map_err(|_| corrupt(sandbox))?,
            features: row.get(first + 3),
        }))
    }
}

impl BuildStatus {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Requested, "requested"),
        (Self::Queued, "queued"),
        (Self::Building, "building"),
        (Self::Ready, "ready"),
        (Self::Failed, "error"),
    ];

    fn text(self) -> &'static str {
        Self::ALL.iter().find(|(status, _)| *status == self).map_or("error", |(_, text)| text)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == text).map(|(status, _)| *status)
    }
}

pub(crate) const SELECT: &str = "SELECT b.id, b.template, b.status, b.tags, b.limits, b.legacy, b.node_template, b.size, b.reason, \
     b.created_at, b.finished_at, b.snapshot, b.has_memory, b.source, b.features, b.memory_size FROM template_builds b ";

impl Store {
    pub async fn insert_build(&self, build: &Build) -> Result<(), StoreError> {
        query(
            "INSERT INTO template_builds (id, template, status, tags, limits, legacy, created_at, server) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&build.id)
        .bind(&build.template)
        .bind(build.status.text())
        .bind(json(&build.tags))
        .bind(json(&build.limits))
        .bind(build.legacy.as_ref())
        .bind(build.created_at.0)
        .bind(self.server())
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a build"))?;
        Ok(())
    }

    pub async fn build(&self, template: &str, id: &str) -> Result<Option<Build>, StoreError> {
        let row = query(AssertSqlSafe(format!("{SELECT} WHERE b.template = ? AND b.id = ?")))
            .bind(template)
            .bind(id)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("read a build"))?;
        row.as_ref().map(read_build).transpose()
    }

    /// All builds of a template, newest first.
    pub async fn list_builds(&self, template: &str) -> Result<Vec<Build>, StoreError> {
        let rows = query(AssertSqlSafe(format!("{SELECT} WHERE b.template = ? ORDER BY b.seq DESC")))
            .bind(template)
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("list builds"))?;
        rows.iter().map(read_build).collect()
    }

    /// The build that a tag names.
    pub async fn tagged_build(&self, template: &str, tag: &str) -> Result<Option<Build>, StoreError> {
        let join = "JOIN template_tags t ON t.build = b.id WHERE t.template = ? AND t.tag = ?";
        let row = query(AssertSqlSafe(format!("{SELECT} {join}")))
            .bind(template)
            .bind(tag)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("read a tagged build"))?;
        row.as_ref().map(read_build).transpose()
    }

    /// Moves a build from one status to another. Returns `false` if the build did not have the first status. If two
    /// servers try, only one succeeds, and the build belongs to that server from then on.
    pub async fn advance_build(&self, id: &str, from: BuildStatus, to: BuildStatus) -> Result<bool, StoreError> {
        let done = query("UPDATE template_builds SET status = ?, server = ? WHERE id = ? AND status = ?")
            .bind(to.text())
            .bind(self.server())
            .bind(id)
            .bind(from.text())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the status of a build"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Marks the build as ready. From now on its tags name it.
    pub async fn finish_build(&self, build: &Build, node_template: &str, size: i64) -> Result<bool, StoreError> {
        let failed = StoreError::doing("record a finished build");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        let is_there = finish(&mut transaction, build, node_template, size).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(is_there)
    }

    pub async fn fail_build(&self, id: &str, reason: &BuildReason) -> Result<(), StoreError> {
        query(
            "UPDATE template_builds SET status = 'error', reason = ?, finished_at = ? \
             WHERE id = ? AND status NOT IN ('ready', 'error')",
        )
        .bind(json(reason))
        .bind(Timestamp::now().0)
        .bind(id)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a failed build"))?;
        Ok(())
    }

    /// Marks builds that this server left unfinished as failed. Returns how many there were.
    pub async fn fail_interrupted_builds(&self, message: &str) -> Result<u64, StoreError> {
        let reason = BuildReason { message: message.to_owned(), step: None };
        let done = query(
            "UPDATE template_builds SET status = 'error', reason = ?, finished_at = ? \
             WHERE status IN ('queued', 'building') AND server = ?",
        )
        .bind(json(&reason))
        .bind(Timestamp::now().0)
        .bind(self.server())
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("mark interrupted builds as failed"))?;
        Ok(done.rows_affected())
    }

    /// Deletes builds that were requested before this time and never started.
    pub async fn drop_stale_requests(&self, before: Timestamp) -> Result<u64, StoreError> {
        let done = query("DELETE FROM template_builds WHERE status = 'requested' AND created_at < ?")
            .bind(before.0)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("remove builds that never started"))?;
        Ok(done.rows_affected())
    }

    /// The template of a build, if the team owns it.
    pub async fn template_of_build(&self, team: &TeamId, build: &str) -> Result<Option<String>, StoreError> {
        let row = query(
            "SELECT t.id FROM templates t JOIN template_builds b ON b.template = t.id WHERE b.id = ? AND t.team = ?",
        )
        .bind(build)
        .bind(&team.0)
        .fetch_optional(&self.read)
        .await
        .map_err(StoreError::doing("look up a build"))?;
        Ok(row.map(|row| row.get(0)))
    }

    /// The tags of a template, latest first.
    pub async fn list_tags(&self, template: &str) -> Result<Vec<Tag>, StoreError> {
        let rows = query(
            "SELECT tag, build, assigned_at FROM template_tags WHERE template = ? ORDER BY assigned_at DESC, tag",
        )
        .bind(template)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("list tags"))?;
        Ok(rows.iter().map(read_tag).collect())
    }

    /// Makes these tags name this build.
    pub async fn assign_tags(&self, template: &str, tags: &[String], build: &str) -> Result<(), StoreError> {
        let failed = StoreError::doing("assign tags");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        for tag in tags {
            assign(&mut transaction, template, tag, build, Timestamp::now()).await.map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)
    }

    /// Returns how many of the tags existed.
    pub async fn remove_tags(&self, template: &str, tags: &[String]) -> Result<u64, StoreError> {
        let failed = StoreError::doing("remove tags");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        let mut removed = 0;
        for tag in tags {
            let done = query("DELETE FROM template_tags WHERE template = ? AND tag = ?")
                .bind(template)
                .bind(tag)
                .execute(&mut transaction)
                .await
                .map_err(&failed)?;
            removed += done.rows_affected();
        }
        transaction.commit().await.map_err(&failed)?;
        Ok(removed)
    }
}

/// Returns whether the build was still there.
pub(super) async fn finish(
    transaction: &mut Transaction,
    build: &Build,
    node_template: &str,
    size: i64,
) -> Result<bool, sqlx::Error> {
    let now = Timestamp::now();
    let done = query(
        "UPDATE template_builds SET status = 'ready', node_template = ?, size = ?, finished_at = ? \
         WHERE id = ? AND status = 'building'",
    )
    .bind(node_template)
    .bind(size)
    .bind(now.0)
    .bind(&build.id)
    .execute(&mut *transaction)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    for tag in &build.tags {
        assign(transaction, &build.template, tag, &build.id, now).await?;
    }
    let updated = query("UPDATE templates SET updated_at = ? WHERE id = ?").bind(now.0).bind(&build.template);
    updated.execute(transaction).await?;
    Ok(true)
}

async fn assign(
    connection: &mut Transaction,
    template: &str,
    tag: &str,
    build: &str,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO template_tags (template, tag, build, assigned_at) VALUES (?, ?, ?, ?) \
         ON CONFLICT (template, tag) DO UPDATE SET build = excluded.build, assigned_at = excluded.assigned_at",
    )
    .bind(template)
    .bind(tag)
    .bind(build)
    .bind(now.0)
    .execute(connection)
    .await
    .map(drop)
}

pub(crate) fn read_build(row: &Row) -> Result<Build, StoreError> {
    let corrupt = |what, value: &str| StoreError::Corrupt { what, value: value.to_owned() };
    let (status, tags, limits): (&str, &str, &str) = (row.get(2), row.get(3), row.get(4));
    let reason: Option<&str> = row.get(8);
    let reason = reason.map(|text| serde_json::from_str(text).map_err(|_| corrupt("the reason of a build", text)));
    Ok(Build {
        id: row.get(0),
        template: row.get(1),
        status: BuildStatus::parse(status).ok_or_else(|| corrupt("the status of a build", status))?,
        tags: serde_json::from_str(tags).map_err(|_| corrupt("the tags of a build", tags))?,
        limits: serde_json::from_str(limits).map_err(|_| corrupt("the limits of a build", limits))?,
        legacy: row.get(5),
        node_template: row.get(6),
        size: row.get(7),
        reason: reason.transpose()?,
        created_at: Timestamp(row.get(9)),
        finished_at: row.get::<Option<i64>>(10).map(Timestamp),
        snapshot: SnapshotSource::read(row, 11)?,
        memory_size: row.get(15),
    })
}

fn read_tag(row: &Row) -> Tag {
    Tag { tag: row.get(0), build: row.get(1), assigned_at: Timestamp(row.get(2)) }
}

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs and lists of strings always serialize to JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn store(dir: &tempfile::TempDir) -> Store {
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        store.ensure_template(&team, "web", "tweb").await.unwrap();
        store
    }

    fn build(id: &str, tags: &[&str]) -> Build {
        Build {
            id: id.to_owned(),
            template: "tweb".to_owned(),
            status: BuildStatus::Requested,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            limits: Limits::default(),
            legacy: None,
            node_template: None,
            size: None,
            memory_size: None,
            reason: None,
            created_at: Timestamp::now(),
            finished_at: None,
            snapshot: None,
        }
    }

    async fn ready(store: &Store, build: &Build, node_template: &str) {
        store.insert_build(build).await.unwrap();
        for (from, to) in [(BuildStatus::Requested, BuildStatus::Queued), (BuildStatus::Queued, BuildStatus::Building)]
        {
            assert!(store.advance_build(&build.id, from, to).await.unwrap());
        }
        assert!(store.finish_build(build, node_template, 1).await.unwrap());
    }

    #[tokio::test]
    async fn a_tag_moves_only_to_a_build_that_is_ready() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir).await;
        ready(&store, &build("b1", &["default"]), "n1").await;
        let second = build("b2", &["default"]);
        store.insert_build(&second).await.unwrap();
        let reason = BuildReason { message: "no".to_owned(), step: Some("1".to_owned()) };
        store.fail_build("b2", &reason).await.unwrap();
        assert!(!store.finish_build(&second, "n2", 1).await.unwrap(), "what failed does not become ready");
        assert_eq!(store.tagged_build("tweb", "default").await.unwrap().unwrap().id, "b1");
        assert_eq!(store.build("tweb", "b2").await.unwrap().unwrap().reason, Some(reason));
        store.assign_tags("tweb", &["v1".to_owned()], "b1").await.unwrap();
        ready(&store, &build("b3", &["default"]), "n3").await;
        assert_eq!(store.tagged_build("tweb", "default").await.unwrap().unwrap().id, "b3");
        assert_eq!(store.tagged_build("tweb", "v1").await.unwrap().unwrap().id, "b1");
        assert_eq!(store.remove_tags("tweb", &["v1".to_owned(), "v2".to_owned()]).await.unwrap(), 1);
        store.remove_template("tweb").await.unwrap();
        assert_eq!(store.leftovers().await.unwrap(), ["n1", "n3"]);
        let team = store.ensure_team().await.unwrap();
        store.ensure_template(&team, "web", "tweb").await.unwrap();
        ready(&store, &build("b4", &["default"]), "n1").await;
        assert_eq!(store.leftovers().await.unwrap(), ["n3"], "what is needed again is not left over");
    }

    #[tokio::test]
    async fn builds_in_the_middle_fail_when_the_server_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir).await;
        store.insert_build(&build("b1", &[])).await.unwrap();
        store.insert_build(&build("b2", &[])).await.unwrap();
        store.advance_build("b2", BuildStatus::Requested, BuildStatus::Queued).await.unwrap();
        assert_eq!(store.fail_interrupted_builds("gone").await.unwrap(), 1);
        assert_eq!(store.build("tweb", "b1").await.unwrap().unwrap().status, BuildStatus::Requested);
        assert_eq!(store.build("tweb", "b2").await.unwrap().unwrap().status, BuildStatus::Failed);
        assert_eq!(
            store.drop_stale_requests(Timestamp::now().plus(std::time::Duration::from_secs(1))).await.unwrap(),
            1
        );
    }
}
