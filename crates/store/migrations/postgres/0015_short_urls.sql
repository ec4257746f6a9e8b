-- Short URLs that lead to a port of a sandbox. Ended ones are kept for a while: they count for the daily limit, and a
-- visitor learns that the link has expired. `sandbox` is the id that the backend knows.
CREATE TABLE short_urls (
    id         TEXT COLLATE "C" PRIMARY KEY,
    team       TEXT COLLATE "C" NOT NULL REFERENCES teams (id),
    sandbox    TEXT COLLATE "C" NOT NULL,
    agent      TEXT COLLATE "C",
    port       BIGINT NOT NULL,
    path       TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    removed_at BIGINT
);
CREATE INDEX short_urls_team ON short_urls (team, created_at);
CREATE INDEX short_urls_expiry ON short_urls (expires_at);
