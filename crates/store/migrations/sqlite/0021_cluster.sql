-- Servers that forward requests to each other. One row in `cluster`: the authority that signs the certificates of its
-- nodes. A node is known by the hash of its public key, so that a certificate alone makes nobody a member. Only servers
-- that share a PostgreSQL database use these tables.
CREATE TABLE cluster (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    authority  TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE cluster_nodes (
    server            TEXT NOT NULL PRIMARY KEY,
    address           TEXT NOT NULL,
    key_hash          BLOB NOT NULL,
    certificate_until INTEGER NOT NULL,
    joined_at         INTEGER NOT NULL,
    removed_at        INTEGER
) STRICT, WITHOUT ROWID;

-- A token lets one machine join. Only its hash is here.
CREATE TABLE cluster_tokens (
    id         TEXT NOT NULL PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_by    TEXT
) STRICT, WITHOUT ROWID;
