//! A database of an earlier version keeps all its data when this version opens it.
//!
//! The fixtures are dumps of what an earlier server wrote, with rows in all tables. They contain the same values for
//! SQLite and for PostgreSQL, and `ISOPOD_TEST_STORE` selects one of them. Never change a fixture: databases like it
//! exist.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "upgrade/agents.rs"]
mod agents;
#[path = "upgrade/database.rs"]
mod database;
#[path = "upgrade/runs.rs"]
mod runs;
#[path = "upgrade/sandboxes.rs"]
mod sandboxes;
#[path = "upgrade/service.rs"]
mod service;
#[path = "upgrade/teams.rs"]
mod teams;
#[path = "upgrade/templates.rs"]
mod templates;
#[path = "upgrade/values.rs"]
mod values;

use isopod_store::{FirstKey, StoreError};

use database::Database;

#[tokio::test]
async fn every_kind_of_row_is_still_there_with_its_values() {
    let database = Database::of_schema_11().await;
    let store = database.open().await.unwrap();
    teams::check(&store).await;
    templates::check(&store).await;
    sandboxes::check(&store).await;
    agents::check(&store).await;
    runs::check(&store).await;
    service::check(&store).await;
    let git = database
        .rows("SELECT id || ' ' || operation_type || ' ' || status || ' ' || commit_sha FROM git_operations")
        .await;
    assert_eq!(git, ["git-1 commit success 0123456789abcdef0123456789abcdef01234567"]);
    store.close().await;
}

#[tokio::test]
async fn no_table_of_the_fixture_is_empty_and_none_loses_rows() {
    let database = Database::of_schema_11().await;
    let before = database.contents().await;
    database.open().await.unwrap().close().await;
    let after = database.contents().await;
    for (table, rows) in before {
        // One of these tables is only used by shared databases, the other one only by files.
        assert!(!rows.is_empty() || ["servers", "server_identity"].contains(&table.as_str()), "{table}");
        assert!(after[&table].len() >= rows.len(), "{table}");
    }
}

#[tokio::test]
async fn a_database_that_was_brought_up_to_date_has_the_schema_of_a_new_one() {
    let (upgraded, fresh) = (Database::of_schema_11().await, Database::empty().await);
    for database in [&upgraded, &fresh] {
        database.open().await.unwrap().close().await;
    }
    assert_eq!(upgraded.schema().await, fresh.schema().await);
}

#[tokio::test]
async fn opening_it_again_changes_nothing() {
    let database = Database::of_schema_11().await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        database.open().await.unwrap().close().await;
        let mut contents = database.contents().await;
        // It records when each server was last seen.
        contents.remove("servers");
        seen.push((database.schema().await, contents));
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn what_the_database_does_by_itself_goes_on() {
    let database = Database::of_schema_11().await;
    let store = database.open().await.unwrap();
    assert!(matches!(store.ensure_first_key(None).await.unwrap(), FirstKey::Exists));
    sandboxes::check_that_uses_of_templates_are_counted(&store).await;
    agents::check_that_new_rows_get_new_numbers(&store).await;
    service::check_that_the_audit_goes_on(&store).await;
    store.close().await;
}

#[tokio::test]
async fn a_database_of_a_later_version_is_refused_and_left_alone() {
    let database = Database::of_schema_11().await;
    database.open().await.unwrap().close().await;
    database.set_version(999).await;
    let before = database.contents().await;
    let refused = database.open().await.unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 999, .. }), "{refused:?}");
    assert!(
        refused.to_string().starts_with("the store has schema 999, but this version knows schemas only up to "),
        "{refused}"
    );
    assert_eq!(database.contents().await, before);
}
