CREATE TABLE webhooks (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    url        TEXT NOT NULL,
    enabled    INTEGER NOT NULL,
    events     TEXT NOT NULL,
    secret     TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX webhooks_team ON webhooks (team, created_at);

-- Written together with its event. `done_at` is set when it was accepted or given up.
CREATE TABLE webhook_deliveries (
    id         TEXT PRIMARY KEY,
    webhook    TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    body       TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    next_at    INTEGER NOT NULL,
    done_at    INTEGER,
    last_error TEXT
) STRICT;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at) WHERE done_at IS NULL;
CREATE INDEX webhook_deliveries_done ON webhook_deliveries (done_at) WHERE done_at IS NOT NULL;
CREATE INDEX webhook_deliveries_webhook ON webhook_deliveries (webhook);
