-- Artifacts that were promoted into the library of a client, and until when they are kept there. The files are on one
-- server's disk, and each server may have one by the same name. A row is written before its file appears and deleted after
-- the file is gone, so no file is without one.
CREATE TABLE promotions (
    server       TEXT NOT NULL,
    team         TEXT NOT NULL,
    client       TEXT NOT NULL,
    path         TEXT NOT NULL,
    run          TEXT NOT NULL,
    agent        TEXT,
    size         INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    generated_at INTEGER NOT NULL,
    promoted_at  INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    PRIMARY KEY (server, team, client, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX promotions_expiry ON promotions (server, expires_at);
