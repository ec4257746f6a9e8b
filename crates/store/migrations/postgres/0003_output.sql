-- How far the output of a sandbox's processes has been read from its guest. Written together with the lines.
CREATE TABLE output_positions (
    sandbox   TEXT COLLATE "C" PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    execution TEXT COLLATE "C" NOT NULL,
    position  BIGINT NOT NULL
);
