-- How often each template was used and when last. Counted where a create succeeds, so that the count outlives the rows.
CREATE TABLE template_spawns (
    template TEXT PRIMARY KEY,
    count    INTEGER NOT NULL,
    last_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER sandboxes_spawned AFTER UPDATE OF state ON sandboxes
WHEN OLD.state = 'creating' AND NEW.state = 'running'
BEGIN
    INSERT INTO template_spawns (template, count, last_at) VALUES (NEW.template, 1, NEW.started_at)
    ON CONFLICT (template) DO UPDATE SET count = count + 1, last_at = max(last_at, excluded.last_at);
END;

-- Those that were made before there was a count.
INSERT INTO template_spawns (template, count, last_at)
SELECT template, count(*), max(started_at) FROM sandboxes WHERE execution IS NOT NULL GROUP BY template;
