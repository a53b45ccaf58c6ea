-- Values that nobody is shown, sealed by the server before they come here, and where they go.

CREATE TABLE secrets (
    tenant TEXT NOT NULL REFERENCES tenants (name),
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    source TEXT NOT NULL,
    sealed TEXT,
    bindings TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- Grows with every change of a tenant's secrets, also when one is removed: other servers see by it that they must look again.
CREATE TABLE secret_revisions (
    tenant TEXT PRIMARY KEY REFERENCES tenants (name),
    revision BIGINT NOT NULL
);

-- What a lease or an exec reached outside.
CREATE TABLE bills (
    subject TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    user_name TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    node TEXT NOT NULL,
    bill TEXT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX bills_by_age ON bills (updated_at);
