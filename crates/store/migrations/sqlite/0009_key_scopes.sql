-- A key may be for less than all of a team, and for a time. `scope` is team, agent, read_only or admin.
ALTER TABLE api_keys ADD COLUMN scope TEXT NOT NULL DEFAULT 'team';
ALTER TABLE api_keys ADD COLUMN agent TEXT;
ALTER TABLE api_keys ADD COLUMN expires_at INTEGER;

-- People who may ask in a team's name with a token that does not name the team itself.
CREATE TABLE team_members (
    team     TEXT NOT NULL REFERENCES teams (id),
    member   TEXT NOT NULL,
    added_at INTEGER NOT NULL,
    PRIMARY KEY (team, member)
) STRICT, WITHOUT ROWID;
