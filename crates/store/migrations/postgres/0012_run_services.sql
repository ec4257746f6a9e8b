-- The agent services that a run calls. A row is written before the first call, and says whether the service was told
-- that the run has ended.
CREATE TABLE run_services (
    run        TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- Empty for the agent service of the server's settings.
    url        TEXT COLLATE "C" NOT NULL,
    attempts   BIGINT NOT NULL,
    -- Set by the first failed attempt.
    give_up_at BIGINT,
    error      TEXT COLLATE "C",
    done_at    BIGINT,
    failed_at  BIGINT,
    PRIMARY KEY (run, url)
);
INSERT INTO run_services (run, url, attempts)
SELECT run, '', 0 FROM run_cleanups WHERE done_at IS NULL AND agent_done = 0;
