//! The rows of snapshots: templates of their own kind, and a build for each time that one was taken.
//!
//! A build is recorded before the node takes the snapshot, so a row names everything that a node keeps. It is deleted
//! again if that fails.

use std::collections::HashSet;
use std::fmt;

use isopod_wire::{Limits, SnapshotId};
use sqlx::AssertSqlSafe;

use super::builds::{SnapshotSource, json, read_build};
use super::templates::read_template;
use super::{Build, Store, StoreError, TeamId, Template, TemplateKind, builds, templates};
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Transaction, query};

/// A snapshot that is about to be taken.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    pub team: TeamId,
    /// Its name. `None` creates a template without one.
    pub name: Option<String>,
    pub tag: String,
    /// The id of its template, if that has to be created.
    pub template: String,
    pub build: String,
    pub limits: Limits,
    pub source: SnapshotSource,
    /// How many the team may have.
    pub most: u32,
    /// How many bytes the memory of the team's snapshots may take together.
    pub most_memory: Option<u64>,
    /// How many bytes their files may take together.
    pub most_disk: Option<u64>,
}

/// What a snapshot takes on its node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSize {
    pub memory: i64,
    /// What its files take.
    pub disk: i64,
}

/// Which part of a team's snapshots takes as much as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotPart {
    Memory,
    Files,
}

/// The outcome of [`Store::begin_snapshot`].
#[derive(Clone, Debug, PartialEq)]
pub enum BeginSnapshot {
    /// It is recorded as being taken.
    Begun(Template, Box<Build>),
    /// The team has a built template with this name.
    NameTaken,
    /// The team has as many as it may have.
    TooMany,
    /// This part of them is as large together as it may be.
    TooLarge(SnapshotPart),
}

/// The outcome of [`Store::finish_snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishSnapshot {
    Kept,
    /// It was deleted in the meantime.
    Deleted,
    /// With it, this part of the team's snapshots would be larger together than it may be.
    TooLarge(SnapshotPart),
}

/// Which snapshots to list.
#[derive(Clone, Debug)]
pub struct SnapshotQuery {
    pub team: TeamId,
    pub sandbox: Option<String>,
    /// A name or an id.
    pub name: Option<String>,
    pub tag: Option<String>,
    /// The position of the last one of the previous page.
    pub before: Option<i64>,
    pub limit: u32,
}

/// A snapshot in a list: a template with its latest build.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptSnapshot {
    pub template: Template,
    pub build: Build,
    /// A tag that names the build.
    pub tag: Option<String>,
    /// Its position in the list.
    pub position: i64,
}

impl SnapshotSize {
    pub fn total(self) -> i64 {
        self.memory.saturating_add(self.disk)
    }
}

impl fmt::Display for SnapshotPart {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Memory => "memory",
            Self::Files => "files",
        })
    }
}

impl Store {
    /// Records a snapshot that is about to be taken, as a build of the template with its name.
    pub async fn begin_snapshot(&self, new: &NewSnapshot) -> Result<BeginSnapshot, StoreError> {
        let failed = StoreError::doing("record a snapshot");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        transaction.lock(&format!("snapshots {}", new.team.0)).await.map_err(&failed)?;
        if let Some(name) = &new.name {
            transaction.lock(&format!("template name {} {name}", new.team.0)).await.map_err(&failed)?;
        }
        if count(&mut transaction, &new.team).await.map_err(&failed)? >= i64::from(new.most) {
            return Ok(BeginSnapshot::TooMany);
        }
        // Each takes something.
        let least = SnapshotSize { memory: i64::from(new.source.has_memory), disk: 1 };
        if let Some(part) = too_large(&mut transaction, new, least).await.map_err(&failed)? {
            return Ok(BeginSnapshot::TooLarge(part));
        }
        let id = ensure(&mut transaction, new).await.map_err(&failed)?;
        insert(&mut transaction, new, &id, self.server()).await.map_err(&failed)?;
        let row = query(AssertSqlSafe(format!("{} t.id = ?", templates::SELECT)))
            .bind(&id)
            .fetch_one(&mut transaction)
            .await
            .map_err(&failed)?;
        let template = read_template(&row);
        if template.kind != TemplateKind::Snapshot {
            return Ok(BeginSnapshot::NameTaken);
        }
        let row = query(AssertSqlSafe(format!("{} WHERE b.id = ?", builds::SELECT)))
            .bind(&new.build)
            .fetch_one(&mut transaction)
            .await
            .map_err(&failed)?;
        let build = read_build(&row)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(BeginSnapshot::Begun(template, Box::new(build)))
    }

    /// Records a snapshot that was taken, with its size.
    pub async fn finish_snapshot(
        &self,
        new: &NewSnapshot,
        build: &Build,
        node_template: &str,
        size: SnapshotSize,
    ) -> Result<FinishSnapshot, StoreError> {
        let failed = StoreError::doing("record a snapshot");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        transaction.lock(&format!("snapshots {}", new.team.0)).await.map_err(&failed)?;
        if let Some(part) = too_large(&mut transaction, new, size).await.map_err(&failed)? {
            return Ok(FinishSnapshot::TooLarge(part));
        }
        let is_there = builds::finish(&mut transaction, build, node_template, size.total()).await.map_err(&failed)?;
        query("UPDATE template_builds SET memory_size = ? WHERE id = ?")
            .bind(size.memory)
            .bind(&build.id)
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(if is_there { FinishSnapshot::Kept } else { FinishSnapshot::Deleted })
    }

    /// The ids and names of the team's snapshots whose names begin like this, with letters, digits and hyphens.
    pub async fn snapshots_named(&self, team: &TeamId, beginning: &str) -> Result<Vec<(String, String)>, StoreError> {
        let named = "SELECT t.id, n.name FROM templates t JOIN template_names n ON n.template = t.id \
             WHERE t.team = ? AND t.kind = 'snapshot' AND n.name LIKE ?";
        let rows = query(named).bind(&team.0).bind(format!("{beginning}%")).fetch_all(&self.write).await;
        let rows = rows.map_err(StoreError::doing("list snapshots by name"))?;
        Ok(rows.iter().map(|row| (row.get::<&str>(0).to_owned(), row.get::<&str>(1).to_owned())).collect())
    }

    /// Deletes the record of a snapshot that was not taken or is not wanted any more, and its template if that has no other.
    pub async fn abandon_snapshot(&self, build: &Build) -> Result<(), StoreError> {
        let failed = StoreError::doing("delete the record of a snapshot");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query("DELETE FROM template_builds WHERE id = ?")
            .bind(&build.id)
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        query(AssertSqlSafe(format!("DELETE FROM templates WHERE id = ? AND {WITHOUT_BUILDS}")))
            .bind(&build.template)
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)
    }

    /// Deletes the records of snapshots that this server was taking when it stopped. Returns how many there were.
    pub async fn abandon_interrupted_snapshots(&self) -> Result<u64, StoreError> {
        let failed = StoreError::doing("delete the records of interrupted snapshots");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        let done =
            query("DELETE FROM template_builds WHERE snapshot IS NOT NULL AND status = 'building' AND server = ?")
                .bind(self.server())
                .execute(&mut transaction)
                .await
                .map_err(&failed)?;
        query(AssertSqlSafe(format!("DELETE FROM templates WHERE {WITHOUT_BUILDS}")))
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(done.rows_affected())
    }

    /// Deletes the records of this server's snapshots that its node does not have, as after a restore of a backup. Returns how
    /// many there were.
    pub async fn abandon_lost_snapshots(&self, on_node: &HashSet<SnapshotId>) -> Result<u64, StoreError> {
        let failed = StoreError::doing("delete the records of lost snapshots");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        let rows = query(
            "SELECT id, snapshot FROM template_builds WHERE snapshot IS NOT NULL AND status = 'ready' AND server = ?",
        )
        .bind(self.server())
        .fetch_all(&mut transaction)
        .await
        .map_err(&failed)?;
        let is_there = |id: &str| id.parse().is_ok_and(|id: SnapshotId| on_node.contains(&id));
        let lost: Vec<&str> = rows.iter().filter(|row| !is_there(row.get(1))).map(|row| row.get(0)).collect();
        for build in &lost {
            query("DELETE FROM template_builds WHERE id = ?")
                .bind(*build)
                .execute(&mut transaction)
                .await
                .map_err(&failed)?;
        }
        query(AssertSqlSafe(format!("DELETE FROM templates WHERE {WITHOUT_BUILDS}")))
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(lost.len() as u64)
    }

    /// The ids of all snapshots that a row names, also of those that are being taken.
    pub async fn kept_snapshots(&self) -> Result<HashSet<SnapshotId>, StoreError> {
        // From the writing side: it must have everything that was recorded before this call.
        let rows = query("SELECT snapshot FROM template_builds WHERE snapshot IS NOT NULL AND status <> 'error'")
            .fetch_all(&self.write)
            .await
            .map_err(StoreError::doing("list the ids of snapshots"))?;
        Ok(rows.iter().filter_map(|row| row.get::<&str>(0).parse().ok()).collect())
    }

    /// The snapshots of a team, latest first: for each template its latest build that the query matches.
    pub async fn list_snapshots(&self, wanted: &SnapshotQuery) -> Result<Vec<KeptSnapshot>, StoreError> {
        let failed = StoreError::doing("list snapshots");
        let mut found = QueryBuilder::new(
            "SELECT b.template, b.id, b.seq, (SELECT g.tag FROM template_tags g WHERE g.build = b.id \
             ORDER BY g.assigned_at DESC, g.tag LIMIT 1) FROM template_builds b JOIN templates t ON t.id = b.template \
             WHERE t.kind = 'snapshot' AND t.team = ",
        );
        found.push_bind(&wanted.team.0);
        if let Some(name) = &wanted.name {
            found.push(" AND (t.id = ").push_bind(name);
            found.push(" OR t.id IN (SELECT n.template FROM template_names n WHERE n.team = t.team AND n.name = ");
            found.push_bind(name).push("))");
        }
        found.push(
            " AND b.seq = (SELECT max(l.seq) FROM template_builds l WHERE l.template = t.id AND l.status = 'ready'",
        );
        if let Some(sandbox) = &wanted.sandbox {
            found.push(" AND l.source = ").push_bind(sandbox);
        }
        if let Some(tag) = &wanted.tag {
            found.push(" AND (l.id = ").push_bind(tag);
            found.push(" OR l.id IN (SELECT g.build FROM template_tags g WHERE g.template = t.id AND g.tag = ");
            found.push_bind(tag).push("))");
        }
        found.push(")");
        if let Some(before) = wanted.before {
            found.push(" AND b.seq < ").push_bind(before);
        }
        found.push(" ORDER BY b.seq DESC LIMIT ").push_bind(wanted.limit);
        let rows = found.build().fetch_all(&self.read).await.map_err(&failed)?;
        let mut snapshots = Vec::with_capacity(rows.len());
        for row in &rows {
            let (template, build): (&str, &str) = (row.get(0), row.get(1));
            // One that was removed in the meantime is left out.
            if let (Some(template), Some(build)) = (self.template(template).await?, self.build(template, build).await?)
            {
                let tag = wanted.tag.clone().or_else(|| row.get(3));
                snapshots.push(KeptSnapshot { template, build, tag, position: row.get(2) });
            }
        }
        Ok(snapshots)
    }
}

const WITHOUT_BUILDS: &str =
    "kind = 'snapshot' AND NOT EXISTS (SELECT 1 FROM template_builds b WHERE b.template = templates.id)";

async fn count(transaction: &mut Transaction, team: &TeamId) -> Result<i64, sqlx::Error> {
    let text = "SELECT count(*) FROM template_builds b JOIN templates t ON t.id = b.template \
         WHERE t.kind = 'snapshot' AND t.team = ?";
    Ok(query(text).bind(&team.0).fetch_one(transaction).await?.get(0))
}

/// Which part of the team's snapshots this much more would make too large. Memory is no reason to refuse files alone.
async fn too_large(
    transaction: &mut Transaction,
    new: &NewSnapshot,
    more: SnapshotSize,
) -> Result<Option<SnapshotPart>, sqlx::Error> {
    let most_memory = new.most_memory.filter(|_| new.source.has_memory);
    if most_memory.is_none() && new.most_disk.is_none() {
        return Ok(None);
    }
    let taken = size_together(transaction, &new.team).await?;
    let exceeds = |taken: i64, more: i64, most: Option<u64>| {
        let together = u64::try_from(taken.saturating_add(more)).unwrap_or(0);
        most.is_some_and(|most| together > most)
    };
    Ok(if exceeds(taken.memory, more.memory, most_memory) {
        Some(SnapshotPart::Memory)
    } else if exceeds(taken.disk, more.disk, new.most_disk) {
        Some(SnapshotPart::Files)
    } else {
        None
    })
}

async fn size_together(transaction: &mut Transaction, team: &TeamId) -> Result<SnapshotSize, sqlx::Error> {
    let text = "SELECT CAST(coalesce(sum(b.memory_size), 0) AS BIGINT), \
         CAST(coalesce(sum(b.size - b.memory_size), 0) AS BIGINT) \
         FROM template_builds b JOIN templates t ON t.id = b.template WHERE t.kind = 'snapshot' AND t.team = ?";
    let row = query(text).bind(&team.0).fetch_one(transaction).await?;
    Ok(SnapshotSize { memory: row.get(0), disk: row.get(1) })
}

/// The id of the template with the name, which is created if there is none.
async fn ensure(transaction: &mut Transaction, new: &NewSnapshot) -> Result<String, sqlx::Error> {
    let now = Timestamp::now();
    if let Some(name) = &new.name {
        let present = query("SELECT template FROM template_names WHERE team = ? AND name = ?")
            .bind(&new.team.0)
            .bind(name)
            .fetch_optional(&mut *transaction)
            .await?;
        if let Some(row) = present {
            return Ok(row.get(0));
        }
    }
    query("INSERT INTO templates (id, team, public, created_at, updated_at, kind) VALUES (?, ?, 0, ?, ?, 'snapshot')")
        .bind(&new.template)
        .bind(&new.team.0)
        .bind(now.0)
        .bind(now.0)
        .execute(&mut *transaction)
        .await?;
    if let Some(name) = &new.name {
        query("INSERT INTO template_names (team, name, template, created_at) VALUES (?, ?, ?, ?)")
            .bind(&new.team.0)
            .bind(name)
            .bind(&new.template)
            .bind(now.0)
            .execute(&mut *transaction)
            .await?;
    }
    Ok(new.template.clone())
}

async fn insert(
    transaction: &mut Transaction,
    new: &NewSnapshot,
    template: &str,
    server: &str,
) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO template_builds (id, template, status, tags, limits, created_at, server, snapshot, has_memory, \
         source, features) VALUES (?, ?, 'building', ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&new.build)
    .bind(template)
    .bind(json(&[&new.tag]))
    .bind(json(&new.limits))
    .bind(Timestamp::now().0)
    .bind(server)
    .bind(new.source.id.as_str())
    .bind(new.source.has_memory)
    .bind(new.source.sandbox.as_str())
    .bind(new.source.features.as_ref())
    .execute(transaction)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::{new_snapshot_id, new_template_id, new_uuid};

    fn new(team: &TeamId, name: Option<&str>, sandbox: &str) -> NewSnapshot {
        NewSnapshot {
            team: team.clone(),
            name: name.map(str::to_owned),
            tag: "default".to_owned(),
            template: new_template_id(),
            build: new_uuid(),
            limits: Limits::default(),
            source: SnapshotSource {
                id: new_snapshot_id(),
                has_memory: true,
                sandbox: sandbox.parse().unwrap(),
                features: None,
            },
            most: 10,
            most_memory: None,
            most_disk: None,
        }
    }

    fn all(team: &TeamId) -> SnapshotQuery {
        SnapshotQuery { team: team.clone(), sandbox: None, name: None, tag: None, before: None, limit: 10 }
    }

    async fn take(store: &Store, new: &NewSnapshot) -> Build {
        let BeginSnapshot::Begun(_, build) = store.begin_snapshot(new).await.unwrap() else { panic!("refused") };
        assert_eq!(store.finish_snapshot(new, &build, "base", memory(7)).await.unwrap(), FinishSnapshot::Kept);
        *build
    }

    fn memory(memory: i64) -> SnapshotSize {
        SnapshotSize { memory, disk: 0 }
    }

    #[tokio::test]
    async fn a_name_is_one_entry_with_its_latest_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        let first = take(&store, &new(&team, Some("a"), "i1")).await;
        let unnamed = take(&store, &new(&team, None, "i1")).await;
        let second = take(&store, &new(&team, Some("a"), "i2")).await;
        assert_eq!(first.template, second.template);
        let ids = async |query: SnapshotQuery| {
            let found = store.list_snapshots(&query).await.unwrap();
            found.into_iter().map(|found| found.build.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(all(&team)).await, [second.id.clone(), unnamed.id.clone()]);
        let of_one = SnapshotQuery { sandbox: Some("i1".to_owned()), ..all(&team) };
        assert_eq!(ids(of_one).await, [unnamed.id.clone(), first.id.clone()]);
        assert_eq!(ids(SnapshotQuery { name: Some("b".to_owned()), ..all(&team) }).await, [""; 0]);
        let by_id = SnapshotQuery { name: Some(unnamed.template.clone()), ..all(&team) };
        assert_eq!(ids(by_id).await, [unnamed.id.as_str()]);
        let page = store.list_snapshots(&SnapshotQuery { limit: 1, ..all(&team) }).await.unwrap();
        assert_eq!((page.len(), page[0].tag.as_deref()), (1, Some("default")));
        assert_eq!(ids(SnapshotQuery { before: Some(page[0].position), ..all(&team) }).await, [unnamed.id.as_str()]);
        assert_eq!(store.list_templates(&team).await.unwrap(), []);
        assert_eq!(store.kept_snapshots().await.unwrap().len(), 3);
        store.remove_template(&first.template).await.unwrap();
        assert_eq!(store.kept_snapshots().await.unwrap(), HashSet::from([unnamed.snapshot.unwrap().id]));
    }

    #[tokio::test]
    async fn a_snapshot_that_the_node_does_not_have_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        let (kept, _lost) =
            (take(&store, &new(&team, Some("a"), "i1")).await, take(&store, &new(&team, Some("b"), "i1")).await);
        let on_node = HashSet::from([kept.snapshot.clone().unwrap().id]);
        assert_eq!(store.abandon_lost_snapshots(&on_node).await.unwrap(), 1);
        let listed = store.list_snapshots(&all(&team)).await.unwrap();
        assert_eq!(listed.iter().map(|found| &found.build.id).collect::<Vec<_>>(), [&kept.id]);
        assert_eq!(store.abandon_lost_snapshots(&on_node).await.unwrap(), 0);
        assert!(store.snapshots_named(&team, "b").await.unwrap().is_empty(), "its name is free");
    }

    #[tokio::test]
    async fn an_interrupted_snapshot_leaves_no_row() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        let kept = take(&store, &new(&team, Some("a"), "i1")).await;
        for name in [Some("a"), Some("b"), None] {
            store.begin_snapshot(&new(&team, name, "i1")).await.unwrap();
        }
        assert_eq!(store.abandon_interrupted_snapshots().await.unwrap(), 3);
        let found = store.list_snapshots(&all(&team)).await.unwrap();
        assert_eq!(found.iter().map(|found| &found.build.id).collect::<Vec<_>>(), [&kept.id]);
        assert_eq!(store.visible_template(&team, "b").await.unwrap(), None);
        let BeginSnapshot::Begun(_, build) = store.begin_snapshot(&new(&team, Some("b"), "i1")).await.unwrap() else {
            panic!("refused")
        };
        store.abandon_snapshot(&build).await.unwrap();
        assert_eq!(store.visible_template(&team, "b").await.unwrap(), None);
    }

    #[tokio::test]
    async fn names_of_templates_and_too_many_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        store.ensure_template(&team, "web", "tweb").await.unwrap();
        let refused = store.begin_snapshot(&new(&team, Some("web"), "i1")).await.unwrap();
        assert_eq!(refused, BeginSnapshot::NameTaken);
        assert_eq!(store.list_builds("tweb").await.unwrap(), []);
        take(&store, &new(&team, None, "i1")).await;
        let refused = store.begin_snapshot(&NewSnapshot { most: 1, ..new(&team, None, "i1") }).await.unwrap();
        assert_eq!(refused, BeginSnapshot::TooMany);
    }

    #[tokio::test]
    async fn more_memory_than_a_team_may_keep_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        let limited = |name| NewSnapshot { most_memory: Some(10), ..new(&team, Some(name), "i1") };
        let kept = take(&store, &limited("a")).await;
        let large = limited("a");
        let BeginSnapshot::Begun(_, build) = store.begin_snapshot(&large).await.unwrap() else { panic!("refused") };
        let too_large = store.finish_snapshot(&large, &build, "base", memory(4)).await.unwrap();
        assert_eq!(too_large, FinishSnapshot::TooLarge(SnapshotPart::Memory));
        store.abandon_snapshot(&build).await.unwrap();
        let listed = store.list_snapshots(&all(&team)).await.unwrap();
        assert_eq!(
            listed.iter().map(|found| &found.build.id).collect::<Vec<_>>(),
            [&kept.id],
            "the name is the first's"
        );
        let fits = limited("b");
        let BeginSnapshot::Begun(_, build) = store.begin_snapshot(&fits).await.unwrap() else { panic!("refused") };
        assert_eq!(store.finish_snapshot(&fits, &build, "base", memory(3)).await.unwrap(), FinishSnapshot::Kept);
        let refused = store.begin_snapshot(&limited("c")).await.unwrap();
        assert_eq!(refused, BeginSnapshot::TooLarge(SnapshotPart::Memory));
        let mut of_files = limited("c");
        of_files.source.has_memory = false;
        let BeginSnapshot::Begun(_, build) = store.begin_snapshot(&of_files).await.unwrap() else { panic!("refused") };
        assert_eq!(store.finish_snapshot(&of_files, &build, "base", memory(0)).await.unwrap(), FinishSnapshot::Kept);
        store.remove_template(&kept.template).await.unwrap();
        assert_eq!(store.finish_snapshot(&of_files, &build, "base", memory(0)).await.unwrap(), FinishSnapshot::Deleted);
        take(&store, &limited("d")).await;
    }

    #[tokio::test]
    async fn more_files_than_a_team_may_keep_are_refused_whether_there_is_memory_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        store.ensure_team_named("other", "other").await.unwrap();
        let limited = |has_memory| {
            let mut limited = NewSnapshot { most_disk: Some(10), ..new(&team, None, "i1") };
            limited.source.has_memory = has_memory;
            limited
        };
        let finish = async |new: &NewSnapshot, size| {
            let BeginSnapshot::Begun(_, build) = store.begin_snapshot(new).await.unwrap() else { panic!("refused") };
            let finished = store.finish_snapshot(new, &build, "base", size).await.unwrap();
            if finished != FinishSnapshot::Kept {
                store.abandon_snapshot(&build).await.unwrap();
            }
            (finished, store.build(&build.template, &build.id).await.unwrap())
        };
        let (kept, build) = finish(&limited(true), SnapshotSize { memory: 100, disk: 7 }).await;
        let build = build.unwrap();
        assert_eq!((kept, build.size, build.memory_size), (FinishSnapshot::Kept, Some(107), Some(100)));
        let too_large = FinishSnapshot::TooLarge(SnapshotPart::Files);
        assert_eq!(finish(&limited(false), SnapshotSize { memory: 0, disk: 4 }).await, (too_large, None));
        assert_eq!(finish(&limited(false), SnapshotSize { memory: 0, disk: 3 }).await.0, FinishSnapshot::Kept);
        for has_memory in [true, false] {
            let refused = store.begin_snapshot(&limited(has_memory)).await.unwrap();
            assert_eq!(refused, BeginSnapshot::TooLarge(SnapshotPart::Files));
        }
        let of_another = NewSnapshot { team: TeamId("other".to_owned()), ..limited(true) };
        assert_eq!(finish(&of_another, SnapshotSize { memory: 1, disk: 10 }).await.0, FinishSnapshot::Kept);
        store.remove_template(&build.template).await.unwrap();
        assert_eq!(finish(&limited(true), SnapshotSize { memory: 1, disk: 7 }).await.0, FinishSnapshot::Kept);
    }
}
