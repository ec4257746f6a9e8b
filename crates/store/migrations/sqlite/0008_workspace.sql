-- Whose files are whose. An execution belongs to the team that used its id first; `removing` holds the id until its files
-- are gone. `sandbox` is the one that the toolkit used last, `toolkit` how it is to behave (JSON).
CREATE TABLE executions (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    created_at INTEGER NOT NULL,
    used_at    INTEGER NOT NULL,
    removing   INTEGER NOT NULL DEFAULT 0,
    sandbox    TEXT,
    toolkit    TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX executions_team ON executions (team, created_at);
CREATE INDEX executions_used ON executions (used_at);

CREATE TABLE volumes (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    token      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    removing   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX volumes_name ON volumes (team, name) WHERE removing = 0;

-- Which volumes a sandbox has where: a list of {name, path}.
ALTER TABLE sandboxes ADD COLUMN volume_mounts TEXT NOT NULL DEFAULT '[]';
