-- An exec is noted before it starts, and told of (its event and its line in the audit log) soon after, many at a time.
-- `origin` is whoever asked for it, for that line.

ALTER TABLE execs ADD COLUMN told BIGINT NOT NULL DEFAULT 1;
ALTER TABLE execs ADD COLUMN origin TEXT;
