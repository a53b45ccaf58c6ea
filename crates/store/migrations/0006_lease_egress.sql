-- What a lease says of egress; without a word its template's policy holds.
ALTER TABLE leases ADD COLUMN egress TEXT;
