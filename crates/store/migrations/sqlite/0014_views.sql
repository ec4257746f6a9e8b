-- What the sandbox service has recorded, for people who query the database: the names and columns of `/api/v1`, with
-- times that can be read. They are read-only.
CREATE VIEW v1_agents AS
SELECT a.id, a.name, a.role, a.status, a.current_task AS current_task_id, a.sandbox AS sandbox_id, a.avatar_url,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.created_at / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.updated_at / 1000.0, 'unixepoch') AS updated_at,
    a.team AS team_id, t.name AS team_name
FROM agents a LEFT JOIN teams t ON t.id = a.team;

CREATE VIEW v1_tasks AS
SELECT k.id, k.title, k.description, k.status, k.priority, k.agent AS assigned_agent_id, k.git_branch,
    k.pull_request_url,
    strftime('%Y-%m-%dT%H:%M:%fZ', k.created_at / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', k.updated_at / 1000.0, 'unixepoch') AS updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', k.completed_at / 1000.0, 'unixepoch') AS completed_at,
    k.sandbox AS sandbox_id, k.team AS team_id, t.name AS team_name
FROM tasks k LEFT JOIN teams t ON t.id = k.team;

CREATE VIEW v1_sandboxes AS
SELECT s.id, s.agent AS agent_id, s.task AS task_id, s.status, s.repo_url, s.branch_name,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.destroyed_at / 1000.0, 'unixepoch') AS destroyed_at,
    s.reason, s.template, s.sandbox AS sandbox_id, s.team AS team_id, t.name AS team_name
FROM service_sandboxes s LEFT JOIN teams t ON t.id = s.team;

CREATE VIEW v1_git_operations AS
SELECT g.id, g.sandbox AS sandbox_id, g.operation_type, g.status, g.commit_sha, g.error_message,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.created_at / 1000.0, 'unixepoch') AS created_at,
    g.team AS team_id, t.name AS team_name
FROM git_operations g LEFT JOIN teams t ON t.id = g.team;
