-- Why an exec was never started, where that is known.
ALTER TABLE execs ADD COLUMN refused TEXT;
