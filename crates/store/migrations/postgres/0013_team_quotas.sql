-- The tier of a team and the limits that it has instead of its tier's. A team without a row has the default of the
-- settings, and so has a column that is null.
CREATE TABLE team_quotas (
    team                TEXT COLLATE "C" PRIMARY KEY REFERENCES teams (id),
    tier                TEXT COLLATE "C",
    concurrent          BIGINT,
    per_hour            BIGINT,
    cpu_seconds_per_day BIGINT,
    memory_mib          BIGINT,
    updated_at          BIGINT NOT NULL
);
