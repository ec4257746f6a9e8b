-- Templates that teams build. What comes with the server (`base` and so on) has no rows: the node knows it.
CREATE TABLE templates (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    public     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX templates_team ON templates (team, created_at, id);
CREATE INDEX templates_public ON templates (created_at, id) WHERE public = 1;

-- Each team has its own names.
CREATE TABLE template_names (
    team       TEXT NOT NULL,
    name       TEXT NOT NULL,
    template   TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX template_names_name ON template_names (name);
CREATE INDEX template_names_template ON template_names (template);

-- Every build is kept, so that a tag can go back to an earlier one. `node_template` is what the node made of it and is
-- there when the status is 'ready'. `tags` is what the build will be called once it is.
CREATE TABLE template_builds (
    seq           INTEGER PRIMARY KEY,
    id            TEXT NOT NULL UNIQUE,
    template      TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    status        TEXT NOT NULL,
    tags          TEXT NOT NULL,
    limits        TEXT NOT NULL,
    legacy        TEXT,
    node_template TEXT,
    size          INTEGER,
    reason        TEXT,
    created_at    INTEGER NOT NULL,
    finished_at   INTEGER
) STRICT;
CREATE INDEX template_builds_template ON template_builds (template, seq);
CREATE INDEX template_builds_open ON template_builds (status) WHERE status NOT IN ('ready', 'error');
CREATE INDEX template_builds_node ON template_builds (node_template) WHERE node_template IS NOT NULL;

CREATE TABLE template_tags (
    template    TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    tag         TEXT NOT NULL,
    build       TEXT NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    assigned_at INTEGER NOT NULL,
    PRIMARY KEY (template, tag)
) STRICT, WITHOUT ROWID;
CREATE INDEX template_tags_build ON template_tags (build);

CREATE TABLE template_build_logs (
    build   TEXT NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT NOT NULL,
    step    TEXT,
    message TEXT NOT NULL,
    PRIMARY KEY (build, seq)
) STRICT, WITHOUT ROWID;

-- What the node made for templates that are gone. It stays here until the node has removed it: a sandbox may stand on it.
CREATE TABLE template_leftovers (
    node_template TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Archives that builds copy from. The hash is the client's and only a name, so each team has its own.
CREATE TABLE template_files (
    team        TEXT NOT NULL,
    hash        TEXT NOT NULL,
    size        INTEGER NOT NULL,
    uploaded_at INTEGER NOT NULL,
    PRIMARY KEY (team, hash)
) STRICT, WITHOUT ROWID;

-- What the template was called when the sandbox was made.
ALTER TABLE sandboxes ADD COLUMN alias TEXT;
