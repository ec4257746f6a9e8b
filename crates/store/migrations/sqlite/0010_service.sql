-- The sandbox service. Its sandboxes may live on another server, so they have rows of their own: who they belong to and
-- what became of them. `sandbox` is the id that the backend knows them by.
CREATE TABLE service_sandboxes (
    id              TEXT PRIMARY KEY,
    team            TEXT NOT NULL REFERENCES teams (id),
    server          TEXT NOT NULL,
    agent           TEXT,
    task            TEXT,
    sandbox         TEXT,
    template        TEXT NOT NULL,
    status          TEXT NOT NULL,
    reason          TEXT,
    repo_url        TEXT,
    branch_name     TEXT,
    cpu_millis      INTEGER,
    memory_mib      INTEGER NOT NULL,
    metadata        TEXT NOT NULL,
    timeout_seconds INTEGER NOT NULL,
    create_key      TEXT NOT NULL UNIQUE,
    idempotency     TEXT,
    request_hash    BLOB,
    created_at      INTEGER NOT NULL,
    running_at      INTEGER,
    destroyed_at    INTEGER
) STRICT;
CREATE INDEX service_sandboxes_team ON service_sandboxes (team, created_at, id);
CREATE INDEX service_sandboxes_all ON service_sandboxes (created_at, id);
CREATE INDEX service_sandboxes_active ON service_sandboxes (team) WHERE destroyed_at IS NULL;
CREATE INDEX service_sandboxes_agent ON service_sandboxes (team, agent, created_at);
CREATE INDEX service_sandboxes_task ON service_sandboxes (team, task, created_at);
CREATE INDEX service_sandboxes_sandbox ON service_sandboxes (sandbox);
CREATE UNIQUE INDEX service_sandboxes_key ON service_sandboxes (team, idempotency) WHERE idempotency IS NOT NULL;

CREATE TABLE agents (
    team         TEXT NOT NULL REFERENCES teams (id),
    id           TEXT NOT NULL,
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    status       TEXT NOT NULL DEFAULT 'idle',
    current_task TEXT,
    sandbox      TEXT,
    avatar_url   TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (team, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    team             TEXT NOT NULL REFERENCES teams (id),
    id               TEXT NOT NULL,
    title            TEXT NOT NULL,
    description      TEXT NOT NULL,
    status           TEXT NOT NULL DEFAULT 'pending',
    priority         TEXT NOT NULL DEFAULT 'medium',
    agent            TEXT,
    sandbox          TEXT,
    git_branch       TEXT,
    pull_request_url TEXT,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    completed_at     INTEGER,
    PRIMARY KEY (team, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tasks_list ON tasks (team, created_at, id);

CREATE TABLE commands (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    team         TEXT NOT NULL,
    sandbox      TEXT NOT NULL,
    agent        TEXT,
    task         TEXT,
    actor        TEXT NOT NULL,
    command      TEXT NOT NULL,
    cwd          TEXT,
    outcome      TEXT NOT NULL,
    exit_code    INTEGER,
    error        TEXT,
    stdout       TEXT NOT NULL,
    stderr       TEXT NOT NULL,
    stdout_bytes INTEGER NOT NULL,
    stderr_bytes INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    duration_ms  INTEGER NOT NULL
) STRICT;
CREATE INDEX commands_team ON commands (team, seq);
CREATE INDEX commands_sandbox ON commands (sandbox, seq);
CREATE INDEX commands_agent ON commands (team, agent, seq);
CREATE INDEX commands_task ON commands (team, task, seq);
CREATE INDEX commands_started ON commands (started_at);

CREATE TABLE git_operations (
    seq            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    team           TEXT NOT NULL,
    sandbox        TEXT NOT NULL,
    operation_type TEXT NOT NULL,
    status         TEXT NOT NULL,
    commit_sha     TEXT,
    error_message  TEXT,
    created_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX git_operations_sandbox ON git_operations (sandbox, seq);
CREATE INDEX git_operations_created ON git_operations (created_at);

-- What sandboxes used in all, whoever made them. `cpu_seen` is the last reading of the present execution.
CREATE TABLE sandbox_usage (
    sandbox         TEXT PRIMARY KEY,
    execution       TEXT NOT NULL,
    cpu_seen        INTEGER NOT NULL,
    cpu_micros      INTEGER NOT NULL,
    memory_mib_ms   INTEGER NOT NULL,
    bytes_in        INTEGER NOT NULL,
    bytes_out       INTEGER NOT NULL,
    sampled_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_usage_sampled ON sandbox_usage (sampled_at);

-- Each server has a chain of its own: `hash` covers the line and the hash before it.
CREATE TABLE audit (
    server   TEXT NOT NULL,
    number   INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    team     TEXT NOT NULL,
    actor    TEXT NOT NULL,
    action   TEXT NOT NULL,
    sandbox  TEXT,
    agent    TEXT,
    task     TEXT,
    source   TEXT,
    status   INTEGER NOT NULL,
    code     TEXT,
    micros   INTEGER NOT NULL,
    hash     BLOB NOT NULL,
    PRIMARY KEY (server, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_team ON audit (team, at);
CREATE INDEX audit_at ON audit (at);
CREATE INDEX audit_sandbox ON audit (sandbox, at);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
