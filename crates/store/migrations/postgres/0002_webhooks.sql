CREATE TABLE webhooks (
    id         TEXT COLLATE "C" PRIMARY KEY,
    team       TEXT COLLATE "C" NOT NULL REFERENCES teams (id),
    name       TEXT COLLATE "C" NOT NULL,
    url        TEXT COLLATE "C" NOT NULL,
    enabled    BIGINT NOT NULL,
    events     TEXT COLLATE "C" NOT NULL,
    secret     TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX webhooks_team ON webhooks (team, created_at);

-- Written together with its event. `done_at` is set when it was accepted or given up.
CREATE TABLE webhook_deliveries (
    id         TEXT COLLATE "C" PRIMARY KEY,
    webhook    TEXT COLLATE "C" NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    body       TEXT COLLATE "C" NOT NULL,
    attempts   BIGINT NOT NULL,
    next_at    BIGINT NOT NULL,
    done_at    BIGINT,
    last_error TEXT COLLATE "C"
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at) WHERE done_at IS NULL;
CREATE INDEX webhook_deliveries_done ON webhook_deliveries (done_at) WHERE done_at IS NOT NULL;
CREATE INDEX webhook_deliveries_webhook ON webhook_deliveries (webhook);
