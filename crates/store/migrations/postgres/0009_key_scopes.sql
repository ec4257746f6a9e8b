-- A key may be for less than all of a team, and for a time. `scope` is team, agent, read_only or admin.
ALTER TABLE api_keys ADD COLUMN scope TEXT COLLATE "C" NOT NULL DEFAULT 'team';
ALTER TABLE api_keys ADD COLUMN agent TEXT COLLATE "C";
ALTER TABLE api_keys ADD COLUMN expires_at BIGINT;

-- People who may ask in a team's name with a token that does not name the team itself.
CREATE TABLE team_members (
    team     TEXT COLLATE "C" NOT NULL REFERENCES teams (id),
    member   TEXT COLLATE "C" NOT NULL,
    added_at BIGINT NOT NULL,
    PRIMARY KEY (team, member)
);
