//! The views of the database, for people who query it: the names and columns of `/api/v1`, read-only.

use crate::support;

use std::sync::Arc;

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

use support::server::until;
use support::{Server, backend, postgres};

/// A time of a view as the API writes it.
fn shown(column: &str) -> String {
    match postgres::is_wanted() {
        true => format!("to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"),
        false => column.to_owned(),
    }
}

/// The first row, with `-` for what is null.
async fn row(server: &Server, columns: &[&str], rest: &str) -> Vec<String> {
    let parts: Vec<String> = columns.iter().map(|column| format!("coalesce({column}, '-')")).collect();
    let found = server.texts(&format!("SELECT {} FROM {rest}", parts.join(" || '|' || "))).await;
    found[0].split('|').map(str::to_owned).collect()
}

#[tokio::test]
async fn the_database_has_views_with_the_names_and_columns_of_the_api() {
    let server = Server::start_with(|config| config.service.backend = Some(backend::fake() as Arc<_>)).await;
    let client = &server.client;
    client.post("/api/v1/agents", json!({ "id": "ada", "name": "Ada", "role": "coder" })).await;
    client.post("/api/v1/tasks", json!({ "id": "t1", "title": "fix it", "priority": "high" })).await;
    let begun = client.post("/api/v1/agents/ada/start-task", json!({ "task_id": "t1" })).await.json;
    let id = begun["sandbox"]["id"].as_str().unwrap();
    let cloned = client.post("/api/v1/git/clone", json!({ "sandbox_id": id, "repo_url": "https://host/x.git" })).await;
    assert_eq!(cloned.status, 200, "{cloned:?}");
    let committed = client.post("/api/v1/git/commit", json!({ "sandbox_id": id, "message": "fix: it" })).await;
    assert_eq!(committed.status, 200, "{committed:?}");

    let agent = client.get("/api/v1/agents/ada").await.json;
    let [created, updated, completed, destroyed] =
        ["created_at", "updated_at", "completed_at", "destroyed_at"].map(shown);
    let columns = ["id", "name", "role", "status", "current_task_id", "sandbox_id", "avatar_url", "team_name"];
    let columns = [&columns[..], &[&created, &updated]].concat();
    let expected = ["ada", "Ada", "coder", "working", "t1", id, "-", "default"];
    let times = [agent["created_at"].as_str().unwrap(), agent["updated_at"].as_str().unwrap()];
    assert_eq!(row(&server, &columns, "v1_agents").await, [&expected[..], &times].concat());

    let columns = ["id", "title", "description", "status", "priority", "assigned_agent_id", "git_branch"];
    let columns = [&columns[..], &["pull_request_url", &created, &completed]].concat();
    let task = client.get("/api/v1/tasks/t1").await.json;
    let created_at = task["created_at"].as_str().unwrap();
    let expected = ["t1", "fix it", "", "in_progress", "high", "ada", "-", "-", created_at, "-"];
    assert_eq!(row(&server, &columns, "v1_tasks").await, expected);

    let columns = ["id", "agent_id", "task_id", "status", "repo_url", "branch_name"];
    let columns = [&columns[..], &[&created, &destroyed]].concat();
    let sandbox = client.get(&format!("/api/v1/sandboxes/{id}")).await.json;
    let text = |name: &str| sandbox[name].as_str().unwrap_or("-").to_owned();
    let expected = [id.to_owned(), "ada".into(), "t1".into(), "running".into(), text("repo_url"), text("branch_name")];
    let expected = [&expected[..], &[text("created_at"), "-".to_owned()]].concat();
    assert_eq!(row(&server, &columns, "v1_sandboxes").await, expected);

    let operations = "SELECT id FROM v1_git_operations";
    until("both operations are recorded", || async { server.texts(operations).await.len() == 2 }).await;
    client.post("/api/v1/tasks/t1/finish", json!({})).await;
    let ended = client.get(&format!("/api/v1/sandboxes/{id}")).await.json;
    let columns = ["operation_type", "status", "commit_sha", "error_message", "sandbox_id", &created];
    for (operation, done) in [("clone", &cloned), ("commit", &committed)] {
        let found = row(&server, &columns, &format!("v1_git_operations WHERE operation_type = '{operation}'")).await;
        let sha = done.json["commit_sha"].as_str().unwrap();
        assert_eq!(found[..5], [operation, "success", sha, "-", id]);
        let lifetime = text("created_at")..=ended["destroyed_at"].as_str().unwrap().to_owned();
        assert!(lifetime.contains(&found[5]), "{operation} at {}, in {lifetime:?}", found[5]);
    }

    let joined = "v1_sandboxes s JOIN v1_tasks k ON k.id = s.task_id AND k.team_id = s.team_id";
    let destroyed = shown("s.destroyed_at");
    let found = row(&server, &["s.status", "k.status", &destroyed], joined).await;
    assert_eq!(found, ["stopped", "completed", ended["destroyed_at"].as_str().unwrap()]);
}

/// What the documentation tells programs to run first on SQLite, which has no schemas.
const PLAIN_VIEWS: &str = include_str!("../../../../docs/assets/plain-views.sql");

/// Programs that were written for tables of these names run unchanged, on PostgreSQL after `SET search_path` and on SQLite
/// after the statements that create temporary views.
#[tokio::test]
async fn queries_with_the_plain_names_run_unchanged() {
    let server = Server::start_with(|config| config.service.backend = Some(backend::fake() as Arc<_>)).await;
    let client = &server.client;
    client.post("/api/v1/agents", json!({ "id": "ada", "name": "Ada", "role": "coder" })).await;
    client.post("/api/v1/tasks", json!({ "id": "t1", "title": "fix it" })).await;
    let begun = client.post("/api/v1/agents/ada/start-task", json!({ "task_id": "t1" })).await.json;
    let id = begun["sandbox"]["id"].as_str().unwrap();
    client.post("/api/v1/git/clone", json!({ "sandbox_id": id, "repo_url": "https://host/x.git" })).await;
    until("the clone is recorded", || async { !server.texts("SELECT id FROM v1_git_operations").await.is_empty() })
        .await;

    let joined = "SELECT a.name || ' ' || t.title || ' ' || s.status || ' ' || g.operation_type FROM agents a \
        JOIN tasks t ON t.id = a.current_task_id AND t.assigned_agent_id = a.id \
        JOIN sandboxes s ON s.agent_id = a.id AND s.task_id = t.id AND s.destroyed_at IS NULL \
        JOIN git_operations g ON g.sandbox_id = s.id WHERE a.status = 'working'";
    let found = if postgres::is_wanted() {
        let stale = "SELECT id FROM sandboxes WHERE created_at < now() - interval '24 hours'";
        assert_eq!(server.texts_in("v1", stale).await, Vec::<String>::new());
        let young = "SELECT id FROM sandboxes WHERE created_at > now() - interval '24 hours'";
        assert_eq!(server.texts_in("v1", young).await, [id]);
        server.texts_in("v1", joined).await
    } else {
        // As a program opens it that only reads.
        let url = format!("sqlite://{}?mode=ro", server.database().display());
        let mut program = SqliteConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(PLAIN_VIEWS).execute(&mut program).await.unwrap();
        let changed = sqlx::raw_sql("DELETE FROM agents").execute(&mut program).await.unwrap_err().to_string();
        assert!(changed.contains("because it is a view"), "{changed}");
        sqlx::query_scalar(joined).fetch_all(&mut program).await.unwrap()
    };
    assert_eq!(found, ["Ada fix it running clone"]);
}

#[tokio::test]
async fn a_server_whose_role_may_not_create_schemas_starts_without_the_plain_names() {
    let dir = tempfile::tempdir().unwrap();
    let url = postgres::database_for(dir.path()).await;
    let role = format!("role_{}", url.split(['/', '?']).nth(3).unwrap());
    let mut operator = PgConnection::connect(&url).await.unwrap();
    let mut order = async |statement: String| {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut operator).await.unwrap();
    };
    order(format!("CREATE ROLE {role} LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO {role}")).await;
    let theirs = url.replace("//postgres@", &format!("//{role}@"));
    let mut server = Server::start_on((theirs.clone(), "alpha"), |_| {}).await;
    let agent = server.client.post("/api/v1/agents", json!({ "id": "ada", "name": "Ada", "role": "coder" })).await;
    assert_eq!(agent.status, 201, "{agent:?}");
    let has_them = async || {
        let mut program = PgConnection::connect(&theirs).await.unwrap();
        sqlx::raw_sql("SET search_path = v1").execute(&mut program).await.unwrap();
        sqlx::query_scalar::<_, String>("SELECT name FROM agents").fetch_all(&mut program).await.ok()
    };
    assert_eq!(has_them().await, None);

    server.stop().await;
    order(format!("CREATE SCHEMA v1 AUTHORIZATION {role}")).await;
    let _server = server.start_again().await;
    until("the server has created them", || async { has_them().await == Some(vec!["Ada".to_owned()]) }).await;
}

/// The API is the only way to change something.
#[tokio::test]
async fn the_views_are_read_only() {
    let server = Server::start().await;
    let names = ["v1_agents", "v1_tasks", "v1_sandboxes", "v1_git_operations"];
    let plain = ["v1.agents", "v1.tasks", "v1.sandboxes", "v1.git_operations"];
    for view in names.iter().chain(plain.iter().filter(|_| postgres::is_wanted())) {
        for statement in [
            format!("DELETE FROM {view}"),
            format!("UPDATE {view} SET status = 'x'"),
            format!("INSERT INTO {view} (id) VALUES ('x')"),
        ] {
            let refused = server.try_sql(&statement).await.unwrap_err().to_string();
            let words = if postgres::is_wanted() { "view" } else { "because it is a view" };
            assert!(refused.contains(words), "{statement}: {refused}");
        }
    }
}
