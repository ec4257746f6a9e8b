-- What the sandbox service has recorded, for people who query the database: the names and columns of `/api/v1`, with
-- times that can be read. They are read-only: a view of two tables is not updatable.
CREATE VIEW v1_agents AS
SELECT a.id, a.name, a.role, a.status, a.current_task AS current_task_id, a.sandbox AS sandbox_id, a.avatar_url,
    to_timestamp(a.created_at / 1000.0) AS created_at,
    to_timestamp(a.updated_at / 1000.0) AS updated_at,
    a.team AS team_id, t.name AS team_name
FROM agents a LEFT JOIN teams t ON t.id = a.team;

CREATE VIEW v1_tasks AS
SELECT k.id, k.title, k.description, k.status, k.priority, k.agent AS assigned_agent_id, k.git_branch,
    k.pull_request_url,
    to_timestamp(k.created_at / 1000.0) AS created_at,
    to_timestamp(k.updated_at / 1000.0) AS updated_at,
    to_timestamp(k.completed_at / 1000.0) AS completed_at,
    k.sandbox AS sandbox_id, k.team AS team_id, t.name AS team_name
FROM tasks k LEFT JOIN teams t ON t.id = k.team;

CREATE VIEW v1_sandboxes AS
SELECT s.id, s.agent AS agent_id, s.task AS task_id, s.status, s.repo_url, s.branch_name,
    to_timestamp(s.created_at / 1000.0) AS created_at,
    to_timestamp(s.destroyed_at / 1000.0) AS destroyed_at,
    s.reason, s.template, s.sandbox AS sandbox_id, s.team AS team_id, t.name AS team_name
FROM service_sandboxes s LEFT JOIN teams t ON t.id = s.team;

CREATE VIEW v1_git_operations AS
SELECT g.id, g.sandbox AS sandbox_id, g.operation_type, g.status, g.commit_sha, g.error_message,
    to_timestamp(g.created_at / 1000.0) AS created_at,
    g.team AS team_id, t.name AS team_name
FROM git_operations g LEFT JOIN teams t ON t.id = g.team;
