-- Times are milliseconds since 1970 (UTC). Lists and maps are JSON.

CREATE TABLE teams (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- A key itself is never stored: only its SHA-256 and enough of it to recognise it in a list.
CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    team         TEXT NOT NULL REFERENCES teams (id),
    name         TEXT NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    length       INTEGER NOT NULL,
    mask_prefix  TEXT NOT NULL,
    mask_suffix  TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT;
CREATE INDEX api_keys_team ON api_keys (team, created_at);

CREATE TABLE sandboxes (
    id                TEXT PRIMARY KEY,
    team              TEXT NOT NULL REFERENCES teams (id),
    template          TEXT NOT NULL,
    state             TEXT NOT NULL,
    pause_mode        TEXT,
    end_reason        TEXT,
    execution         TEXT,
    created_at        INTEGER NOT NULL,
    started_at        INTEGER NOT NULL,
    ends_at           INTEGER NOT NULL,
    ended_at          INTEGER,
    timeout_seconds   INTEGER NOT NULL,
    auto_pause        INTEGER NOT NULL,
    auto_pause_memory INTEGER NOT NULL,
    auto_resume       INTEGER NOT NULL,
    allow_internet    INTEGER,
    network           TEXT NOT NULL,
    metadata          TEXT NOT NULL,
    limits            TEXT NOT NULL,
    access_token      TEXT,
    traffic_token     TEXT,
    session_key       TEXT
) STRICT;
CREATE INDEX sandboxes_list ON sandboxes (team, started_at, id);
CREATE INDEX sandboxes_live ON sandboxes (state) WHERE state <> 'ended';
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE state = 'ended';
-- However many callers race for one session, one live sandbox can hold it.
CREATE UNIQUE INDEX sandboxes_session ON sandboxes (team, session_key) WHERE session_key IS NOT NULL AND state <> 'ended';

CREATE TABLE sandbox_logs (
    seq     INTEGER PRIMARY KEY,
    sandbox TEXT NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT NOT NULL,
    message TEXT NOT NULL,
    fields  TEXT NOT NULL
) STRICT;
CREATE INDEX sandbox_logs_sandbox ON sandbox_logs (sandbox, at, seq);
CREATE INDEX sandbox_logs_at ON sandbox_logs (at);

CREATE TABLE sandbox_metrics (
    sandbox     TEXT NOT NULL,
    at          INTEGER NOT NULL,
    cpu_count   INTEGER NOT NULL,
    cpu_percent REAL NOT NULL,
    mem_used    INTEGER NOT NULL,
    mem_total   INTEGER NOT NULL,
    mem_cache   INTEGER NOT NULL,
    disk_used   INTEGER NOT NULL,
    disk_total  INTEGER NOT NULL,
    PRIMARY KEY (sandbox, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_metrics_at ON sandbox_metrics (at);

CREATE TABLE events (
    seq       INTEGER PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    team      TEXT NOT NULL,
    sandbox   TEXT NOT NULL,
    execution TEXT,
    template  TEXT NOT NULL,
    type      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    data      TEXT NOT NULL
) STRICT;
CREATE INDEX events_team ON events (team, seq);
CREATE INDEX events_sandbox ON events (sandbox, seq);
CREATE INDEX events_at ON events (at);

-- `sandbox` names what the first request made; it is set together with the intent row, so a crash in between is seen.
CREATE TABLE idempotency_keys (
    team         TEXT NOT NULL,
    key          TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    sandbox      TEXT,
    done         INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (team, key)
) STRICT, WITHOUT ROWID;
