-- Runs of workflows. A run has its own copy of its nodes: agents may change it while it runs.
CREATE TABLE runs (
    id             TEXT PRIMARY KEY,
    team           TEXT NOT NULL REFERENCES teams (id),
    workflow       TEXT NOT NULL,
    name           TEXT NOT NULL,
    client         TEXT NOT NULL,
    status         TEXT NOT NULL,
    -- Why it ended, and why nothing starts at the moment.
    reason         TEXT,
    error          TEXT,
    paused         TEXT,
    settings       TEXT NOT NULL,
    tokens_used    INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    -- When its time is over; or what is left of it while it waits for a person.
    deadline_at    INTEGER,
    time_left_ms   INTEGER,
    approval_until INTEGER,
    ended_at       INTEGER,
    -- When its cleanup was confirmed. Only then may it be forgotten.
    settled_at     INTEGER
) STRICT;
CREATE INDEX runs_list ON runs (team, created_at, id);
CREATE INDEX runs_live ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_settled ON runs (settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE run_nodes (
    run        TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    id         TEXT NOT NULL,
    place      INTEGER NOT NULL,
    spec       TEXT NOT NULL,
    state      TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    next_at    INTEGER,
    approved   INTEGER NOT NULL,
    output     TEXT,
    error      TEXT,
    started_at INTEGER,
    ended_at   INTEGER,
    PRIMARY KEY (run, id)
) STRICT;

CREATE TABLE run_invocations (
    run    TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    id     TEXT NOT NULL,
    number INTEGER NOT NULL,
    node   TEXT NOT NULL,
    body   TEXT NOT NULL,
    PRIMARY KEY (run, id)
) STRICT;

CREATE TABLE run_events (
    run  TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq  INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    kind TEXT NOT NULL,
    node TEXT,
    data TEXT NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- The outbox: what is to be disposed of when a run has ended. Written in the transaction that ends the run, one row per
-- run, never removed before it is confirmed.
CREATE TABLE run_cleanups (
    run          TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    team         TEXT NOT NULL,
    sandbox_done INTEGER NOT NULL,
    agent_done   INTEGER NOT NULL,
    killed       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    next_at      INTEGER NOT NULL,
    last_error   TEXT,
    done_at      INTEGER
) STRICT;
CREATE INDEX run_cleanups_due ON run_cleanups (next_at) WHERE done_at IS NULL;
