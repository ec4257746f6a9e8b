-- Servers that forward requests to each other. One row in `cluster`: the authority that signs the certificates of its
-- nodes. A node is known by the hash of its public key, so that a certificate alone makes nobody a member.
CREATE TABLE cluster (
    id         BIGINT PRIMARY KEY CHECK (id = 1),
    authority  TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE cluster_nodes (
    server            TEXT COLLATE "C" PRIMARY KEY,
    address           TEXT COLLATE "C" NOT NULL,
    key_hash          BYTEA NOT NULL,
    certificate_until BIGINT NOT NULL,
    joined_at         BIGINT NOT NULL,
    removed_at        BIGINT
);

-- A token lets one machine join. Only its hash is here.
CREATE TABLE cluster_tokens (
    id         TEXT COLLATE "C" PRIMARY KEY,
    hash       BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_by    TEXT COLLATE "C"
);
