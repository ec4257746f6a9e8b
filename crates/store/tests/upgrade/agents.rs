//! Sessions with their files and artifacts, executions and volumes.

use isopod_store::{
    ArtifactInfo, ExecutionClaim, ExecutionName, FileFacts, FileRecord, Owner, OwnerKind, SessionRow, Side, Store,
    Volume,
};
use isopod_wire::node::Secret;

use crate::values::{SERVER, assert_same, at, id, team, text};

pub(crate) async fn check(store: &Store) {
    assert_eq!(store.server_identity().await.unwrap(), SERVER);
    check_sessions(store).await;
    check_session_files(store).await;
    check_artifacts(store).await;
    check_executions(store).await;
    check_volumes(store).await;
}

async fn check_sessions(store: &Store) {
    let run = SessionRow {
        id: 1,
        team: team(),
        owner: Owner::run("run-1").unwrap(),
        is_ending: false,
        sandbox: Some(id("irunning")),
        restarts: 2,
    };
    let task = SessionRow {
        id: 2,
        team: team(),
        owner: Owner::parse(OwnerKind::Task, "task-1").unwrap(),
        is_ending: true,
        sandbox: Some(id("iending")),
        restarts: 0,
    };
    assert_same(&store.open_sessions().await.unwrap(), &vec![run, task]);
    let ended = Owner::parse(OwnerKind::Execution, "exec-1").unwrap();
    assert!(store.find_session_of(&team(), &ended).await.unwrap().is_none());
}

async fn check_session_files(store: &Store) {
    let file = |side, path: &str, hash| FileRecord {
        side,
        path: path.to_owned(),
        facts: Some(FileFacts { size: 11, modified: -5, changed: 1_763_200_000_123_456_789, inode: u64::MAX }),
        hash,
    };
    let mut files = store.session_files(&id("irunning")).await.unwrap();
    files.sort_by(|left, right| left.path.cmp(&right.path));
    assert_eq!(files, [file(Side::Input, "in/a.txt", Some([7; 32])), file(Side::Inside, "out/b.txt", None)]);
}

async fn check_artifacts(store: &Store) {
    let artifact = ArtifactInfo {
        filename: "report.pdf".to_owned(),
        agent_id: text("writer"),
        generated_at: at(1600),
        size_bytes: 5_000_000_000,
        content_type: "application/pdf".to_owned(),
    };
    assert_eq!(store.artifacts_of(&team(), "run-1").await.unwrap(), [artifact]);
    assert_eq!(store.runs_with_old_artifacts(at(9999)).await.unwrap(), [(team(), "run-1".to_owned())]);
    assert!(store.claim_run_directory(&team(), "run-1").await.unwrap());
    let other = isopod_store::TeamId("team-named".to_owned());
    assert!(!store.claim_run_directory(&other, "run-1").await.unwrap());
}

async fn check_executions(store: &Store) {
    let name = |text| ExecutionName::parse(text).unwrap();
    let (kept, removed) = (name("exec.kept"), name("exec.removed"));
    let listed = store.list_executions(&team()).await.unwrap();
    assert_eq!(listed, [("exec.kept".to_owned(), at(35), at(37))]);
    assert_eq!(store.toolkit_sandbox(&kept).await.unwrap(), text("irunning"));
    assert_eq!(store.toolkit_config(&kept).await.unwrap(), text(r#"{"timeout":5}"#));
    assert_eq!(store.stale_executions(at(0)).await.unwrap(), [(team(), removed.clone())]);
    assert_eq!(store.claim_execution(&team(), &kept).await.unwrap(), ExecutionClaim::Ours);
    assert_eq!(store.claim_execution(&team(), &removed).await.unwrap(), ExecutionClaim::Removing);
}

async fn check_volumes(store: &Store) {
    let token = Secret("token-data".to_owned());
    let wanted = Volume { id: "vol-data".to_owned(), team: team(), name: "data".to_owned(), token: token.clone() };
    let volumes = store.list_volumes(&team()).await.unwrap();
    assert_eq!(volumes[0].token, token);
    assert_same(&volumes, &vec![wanted]);
    assert_eq!(store.volumes_to_remove().await.unwrap(), ["vol-old"]);
}

/// The database numbers the rows, and must not reuse numbers that are taken.
pub(crate) async fn check_that_new_rows_get_new_numbers(store: &Store) {
    let new = store.open_session(&team(), &Owner::run("run-new").unwrap()).await.unwrap();
    assert!(new.id > 3, "{}", new.id);
}
