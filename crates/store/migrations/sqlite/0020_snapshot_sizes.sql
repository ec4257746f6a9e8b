-- How much of the size of a snapshot is saved memory. The rest is what its files take, which earlier versions did not count.
ALTER TABLE template_builds ADD COLUMN memory_size INTEGER;
UPDATE template_builds SET memory_size = size WHERE snapshot IS NOT NULL;
