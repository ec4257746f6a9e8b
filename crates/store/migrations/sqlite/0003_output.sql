-- How far the output of a sandbox's processes has been read from its guest. Written together with the lines.
CREATE TABLE output_positions (
    sandbox   TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    execution TEXT NOT NULL,
    position  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
