-- How often each template was used and when last. Counted where a create succeeds, so that the count outlives the rows.
CREATE TABLE template_spawns (
    template TEXT COLLATE "C" PRIMARY KEY,
    count    BIGINT NOT NULL,
    last_at  BIGINT NOT NULL
);

-- Those that were made before there was a count.
INSERT INTO template_spawns (template, count, last_at)
SELECT template, count(*), max(started_at) FROM sandboxes WHERE execution IS NOT NULL GROUP BY template;

CREATE FUNCTION count_spawn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO template_spawns (template, count, last_at) VALUES (NEW.template, 1, NEW.started_at)
    ON CONFLICT (template) DO UPDATE SET count = template_spawns.count + 1,
        last_at = greatest(template_spawns.last_at, excluded.last_at);
    RETURN NULL;
END $$;
CREATE TRIGGER sandboxes_spawned AFTER UPDATE OF state ON sandboxes FOR EACH ROW
WHEN (OLD.state = 'creating' AND NEW.state = 'running') EXECUTE FUNCTION count_spawn();
