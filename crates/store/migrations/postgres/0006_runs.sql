-- Runs of workflows. A run has its own copy of its nodes: agents may change it while it runs.
CREATE TABLE runs (
    id             TEXT COLLATE "C" PRIMARY KEY,
    team           TEXT COLLATE "C" NOT NULL REFERENCES teams (id),
    workflow       TEXT COLLATE "C" NOT NULL,
    name           TEXT COLLATE "C" NOT NULL,
    client         TEXT COLLATE "C" NOT NULL,
    status         TEXT COLLATE "C" NOT NULL,
    -- Why it ended, and why nothing starts at the moment.
    reason         TEXT COLLATE "C",
    error          TEXT COLLATE "C",
    paused         TEXT COLLATE "C",
    settings       TEXT COLLATE "C" NOT NULL,
    tokens_used    BIGINT NOT NULL,
    last_seq       BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    -- When its time is over; or what is left of it while it waits for a person.
    deadline_at    BIGINT,
    time_left_ms   BIGINT,
    approval_until BIGINT,
    ended_at       BIGINT,
    -- When its cleanup was confirmed. Only then may it be forgotten.
    settled_at     BIGINT
);
CREATE INDEX runs_list ON runs (team, created_at, id);
CREATE INDEX runs_live ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_settled ON runs (settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE run_nodes (
    run        TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    id         TEXT COLLATE "C" NOT NULL,
    place      BIGINT NOT NULL,
    spec       TEXT COLLATE "C" NOT NULL,
    state      TEXT COLLATE "C" NOT NULL,
    attempts   BIGINT NOT NULL,
    next_at    BIGINT,
    approved   BIGINT NOT NULL,
    output     TEXT COLLATE "C",
    error      TEXT COLLATE "C",
    started_at BIGINT,
    ended_at   BIGINT,
    PRIMARY KEY (run, id)
);

CREATE TABLE run_invocations (
    run    TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    id     TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    node   TEXT COLLATE "C" NOT NULL,
    body   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, id)
);

CREATE TABLE run_events (
    run  TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq  BIGINT NOT NULL,
    at   BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C",
    data TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, seq)
);

-- The outbox: what is to be disposed of when a run has ended. Written in the transaction that ends the run, one row per
-- run, never removed before it is confirmed.
CREATE TABLE run_cleanups (
    run          TEXT COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    team         TEXT COLLATE "C" NOT NULL,
    sandbox_done BIGINT NOT NULL,
    agent_done   BIGINT NOT NULL,
    killed       BIGINT NOT NULL,
    attempts     BIGINT NOT NULL,
    next_at      BIGINT NOT NULL,
    last_error   TEXT COLLATE "C",
    done_at      BIGINT
);
CREATE INDEX run_cleanups_due ON run_cleanups (next_at) WHERE done_at IS NULL;
