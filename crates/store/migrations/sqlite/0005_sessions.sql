-- A session leases a sandbox to an owner: a run, a task or an execution. The row is written before its sandbox is made.
-- state: live, ending (its sandbox is to be removed, not yet confirmed), ended.
CREATE TABLE sessions (
    id         INTEGER PRIMARY KEY,
    team       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    state      TEXT NOT NULL,
    sandbox    TEXT,
    restarts   INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;
CREATE UNIQUE INDEX sessions_live ON sessions (team, kind, owner) WHERE state <> 'ended';
CREATE INDEX sessions_owner ON sessions (team, kind, owner);
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE state = 'ended';

-- What is known of the files of one sandbox: inputs that were sent into it, and files that were seen inside.
CREATE TABLE session_files (
    sandbox  TEXT NOT NULL,
    side     TEXT NOT NULL,
    path     TEXT NOT NULL,
    size     INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    changed  INTEGER NOT NULL,
    inode    INTEGER NOT NULL,
    hash     BLOB,
    PRIMARY KEY (sandbox, side, path)
) STRICT, WITHOUT ROWID;

-- What came out of a run.
CREATE TABLE artifacts (
    team         TEXT NOT NULL,
    run          TEXT NOT NULL,
    path         TEXT NOT NULL,
    agent        TEXT,
    size         INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    generated_at INTEGER NOT NULL,
    PRIMARY KEY (team, run, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifacts_at ON artifacts (generated_at);

-- Where directories carry no team in their name, the first to use a run has it.
CREATE TABLE run_directories (
    run  TEXT PRIMARY KEY,
    team TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who this server is for others that share its Redis or its rows.
CREATE TABLE server_identity (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    id       TEXT NOT NULL
) STRICT;
