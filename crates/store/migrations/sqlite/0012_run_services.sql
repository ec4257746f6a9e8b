-- The agent services that a run calls. A row is written before the first call, and says whether the service was told
-- that the run has ended.
CREATE TABLE run_services (
    run        TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- Empty for the agent service of the server's settings.
    url        TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    -- Set by the first failed attempt.
    give_up_at INTEGER,
    error      TEXT,
    done_at    INTEGER,
    failed_at  INTEGER,
    PRIMARY KEY (run, url)
) STRICT;
INSERT INTO run_services (run, url, attempts)
SELECT run, '', 0 FROM run_cleanups WHERE done_at IS NULL AND agent_done = 0;
