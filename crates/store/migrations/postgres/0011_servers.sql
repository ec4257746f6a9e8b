-- Several servers may share a PostgreSQL database. `server` is the id of the one that has what a row speaks of. A file
-- has one server, without a name.
CREATE TABLE servers (
    id      TEXT COLLATE "C" PRIMARY KEY,
    name    TEXT COLLATE "C" NOT NULL,
    seen_at BIGINT NOT NULL
);

ALTER TABLE sandboxes ADD COLUMN server TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN server TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN server TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE idempotency_keys ADD COLUMN server TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE template_builds ADD COLUMN server TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE artifacts ADD COLUMN server TEXT COLLATE "C" NOT NULL DEFAULT '';

-- What nodes made and archives that were uploaded are files: each server has its own, perhaps by the same name.
ALTER TABLE template_leftovers RENAME TO former_leftovers;
CREATE TABLE template_leftovers (
    server        TEXT COLLATE "C" NOT NULL,
    node_template TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (server, node_template)
);
INSERT INTO template_leftovers (server, node_template) SELECT '', node_template FROM former_leftovers;
DROP TABLE former_leftovers;

ALTER TABLE template_files RENAME TO former_files;
CREATE TABLE template_files (
    server      TEXT COLLATE "C" NOT NULL,
    team        TEXT COLLATE "C" NOT NULL,
    hash        TEXT COLLATE "C" NOT NULL,
    size        BIGINT NOT NULL,
    uploaded_at BIGINT NOT NULL,
    PRIMARY KEY (server, team, hash)
);
INSERT INTO template_files (server, team, hash, size, uploaded_at)
SELECT '', team, hash, size, uploaded_at FROM former_files;
DROP TABLE former_files;
