-- The names that programs expect, for one connection to Isopod's SQLite file. The file isn't changed, so it can be opened
-- read-only. Names of temporary views come before those of the server's own tables.
CREATE TEMP VIEW agents AS SELECT * FROM v1_agents;
CREATE TEMP VIEW tasks AS SELECT * FROM v1_tasks;
CREATE TEMP VIEW sandboxes AS SELECT * FROM v1_sandboxes;
CREATE TEMP VIEW git_operations AS SELECT * FROM v1_git_operations;
