-- The tier of a team and the limits that it has instead of its tier's. A team without a row has the default of the
-- settings, and so has a column that is null.
CREATE TABLE team_quotas (
    team                TEXT PRIMARY KEY REFERENCES teams (id),
    tier                TEXT,
    concurrent          INTEGER,
    per_hour            INTEGER,
    cpu_seconds_per_day INTEGER,
    memory_mib          INTEGER,
    updated_at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
