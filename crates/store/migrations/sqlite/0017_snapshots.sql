-- A snapshot of a sandbox is a template of its own kind, which may have no name. Each time it is taken is a build of it.
ALTER TABLE templates ADD COLUMN kind TEXT NOT NULL DEFAULT 'template';
CREATE INDEX templates_snapshots ON templates (team) WHERE kind = 'snapshot';

-- Only a build of a snapshot has these. `snapshot` is its id on the node, whose template it stands on is `node_template`.
-- `source` is the sandbox, which may be gone, and `features` the kernel features that the sandbox had asked for.
ALTER TABLE template_builds ADD COLUMN snapshot TEXT;
ALTER TABLE template_builds ADD COLUMN has_memory INTEGER;
ALTER TABLE template_builds ADD COLUMN source TEXT;
ALTER TABLE template_builds ADD COLUMN features TEXT;
CREATE INDEX template_builds_snapshot ON template_builds (snapshot) WHERE snapshot IS NOT NULL;
