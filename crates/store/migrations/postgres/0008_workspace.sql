-- Whose files are whose. An execution belongs to the team that used its id first; `removing` holds the id until its files
-- are gone. `sandbox` is the one that the toolkit used last, `toolkit` how it is to behave (JSON).
CREATE TABLE executions (
    id         TEXT COLLATE "C" PRIMARY KEY,
    team       TEXT COLLATE "C" NOT NULL REFERENCES teams (id),
    created_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL,
    removing   BIGINT NOT NULL DEFAULT 0,
    sandbox    TEXT COLLATE "C",
    toolkit    TEXT COLLATE "C"
);
CREATE INDEX executions_team ON executions (team, created_at);
CREATE INDEX executions_used ON executions (used_at);

CREATE TABLE volumes (
    id         TEXT COLLATE "C" PRIMARY KEY,
    team       TEXT COLLATE "C" NOT NULL REFERENCES teams (id),
    name       TEXT COLLATE "C" NOT NULL,
    token      TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    removing   BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX volumes_name ON volumes (team, name) WHERE removing = 0;

-- Which volumes a sandbox has where: a list of {name, path}.
ALTER TABLE sandboxes ADD COLUMN volume_mounts TEXT COLLATE "C" NOT NULL DEFAULT '[]';
