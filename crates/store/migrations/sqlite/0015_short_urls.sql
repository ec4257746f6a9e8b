-- Short URLs that lead to a port of a sandbox. Ended ones are kept for a while: they count for the daily limit, and a
-- visitor learns that the link has expired. `sandbox` is the id that the backend knows.
CREATE TABLE short_urls (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    sandbox    TEXT NOT NULL,
    agent      TEXT,
    port       INTEGER NOT NULL,
    path       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    removed_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX short_urls_team ON short_urls (team, created_at);
CREATE INDEX short_urls_expiry ON short_urls (expires_at);
