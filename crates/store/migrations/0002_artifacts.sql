-- Files that outlive their sandbox, and creations that may be repeated.

CREATE TABLE artifacts (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    user_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    subject TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    location TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT
);
CREATE INDEX artifacts_of_tenant ON artifacts (tenant, id);
CREATE INDEX artifacts_by_subject ON artifacts (subject, kind);
CREATE INDEX artifacts_by_expiry ON artifacts (expires_at);

CREATE TABLE repeatable (
    tenant TEXT NOT NULL,
    user_name TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    subject TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, user_name, idempotency_key)
);
CREATE INDEX repeatable_by_age ON repeatable (created_at);
