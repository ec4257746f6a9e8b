-- Servers that share a PostgreSQL database renew a lease by its clock. One whose lease has run out doesn't answer. Null: a
-- server of an earlier version, which has none.
ALTER TABLE servers ADD COLUMN lease_until INTEGER;
ALTER TABLE servers ADD COLUMN version TEXT NOT NULL DEFAULT '';
