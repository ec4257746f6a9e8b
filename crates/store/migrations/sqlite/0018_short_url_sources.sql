-- The network of the client that created the short URL, for its daily limit. Null for those of earlier versions.
ALTER TABLE short_urls ADD COLUMN created_from TEXT;
CREATE INDEX short_urls_source ON short_urls (created_from, created_at);
