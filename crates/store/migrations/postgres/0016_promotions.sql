-- Artifacts that were promoted into the library of a client, and until when they are kept there. The files are on one
-- server's disk, and each server may have one by the same name. A row is written before its file appears and deleted after
-- the file is gone, so no file is without one.
CREATE TABLE promotions (
    server       TEXT COLLATE "C" NOT NULL,
    team         TEXT COLLATE "C" NOT NULL,
    client       TEXT COLLATE "C" NOT NULL,
    path         TEXT COLLATE "C" NOT NULL,
    run          TEXT COLLATE "C" NOT NULL,
    agent        TEXT COLLATE "C",
    size         BIGINT NOT NULL,
    content_type TEXT COLLATE "C" NOT NULL,
    generated_at BIGINT NOT NULL,
    promoted_at  BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    PRIMARY KEY (server, team, client, path)
);
CREATE INDEX promotions_expiry ON promotions (server, expires_at);
