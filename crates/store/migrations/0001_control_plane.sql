-- TEXT and BIGINT only, so that the same text runs on SQLite and PostgreSQL. Times are milliseconds since 1970.

CREATE TABLE tenants (
    name TEXT PRIMARY KEY,
    quota TEXT NOT NULL,
    weight BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    event_seq BIGINT NOT NULL
);

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (name),
    user_name TEXT NOT NULL,
    label TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    scopes TEXT NOT NULL,
    requests_per_second BIGINT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);
CREATE INDEX keys_of_tenant ON keys (tenant, id);

CREATE TABLE templates (
    at TEXT PRIMARY KEY,
    owner TEXT REFERENCES tenants (name),
    recipe TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    version BIGINT NOT NULL
);

CREATE TABLE nodes (
    id TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    audit_seq BIGINT NOT NULL,
    audit_hash TEXT NOT NULL
);

CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    node TEXT NOT NULL REFERENCES nodes (id),
    template TEXT NOT NULL,
    template_version BIGINT NOT NULL,
    isolation TEXT NOT NULL,
    limits TEXT NOT NULL,
    state TEXT NOT NULL,
    tenant TEXT,
    user_name TEXT,
    lease TEXT,
    created_at BIGINT NOT NULL,
    ready_at BIGINT,
    ended_at BIGINT,
    ended_because TEXT,
    generation BIGINT NOT NULL
);
CREATE INDEX sandboxes_by_state ON sandboxes (node, state, template, ready_at);
CREATE INDEX sandboxes_of_tenant ON sandboxes (tenant, state, id);
CREATE INDEX sandboxes_by_end ON sandboxes (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (name),
    user_name TEXT NOT NULL,
    workflow TEXT NOT NULL,
    request TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    template TEXT NOT NULL,
    sandbox TEXT,
    node TEXT NOT NULL REFERENCES nodes (id),
    status TEXT NOT NULL,
    admission TEXT NOT NULL,
    ttl_seconds BIGINT NOT NULL,
    heartbeat_seconds BIGINT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    ended_because TEXT,
    millicpus BIGINT NOT NULL,
    memory BIGINT NOT NULL,
    one_shot BIGINT NOT NULL,
    binding TEXT,
    version BIGINT NOT NULL,
    UNIQUE (tenant, user_name, workflow, request)
);
CREATE INDEX leases_by_expiry ON leases (status, expires_at);
-- What a tenant uses is summed up from the index alone.
CREATE INDEX leases_of_tenant ON leases (tenant, status, millicpus, memory);
CREATE INDEX leases_by_end ON leases (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE execs (
    id TEXT PRIMARY KEY,
    sandbox TEXT NOT NULL,
    lease TEXT,
    tenant TEXT NOT NULL,
    user_name TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    command TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    exit TEXT,
    stdout_bytes BIGINT,
    stderr_bytes BIGINT,
    duration_us BIGINT
);
CREATE INDEX execs_of_sandbox ON execs (sandbox, id);
CREATE INDEX execs_of_tenant ON execs (tenant, id);
CREATE INDEX execs_running ON execs (tenant, sandbox) WHERE ended_at IS NULL;
CREATE INDEX execs_by_end ON execs (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE events (
    tenant TEXT NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    time BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (tenant, seq)
);
CREATE INDEX events_by_subject ON events (tenant, subject, seq);

CREATE TABLE audit (
    node TEXT NOT NULL,
    seq BIGINT NOT NULL,
    time BIGINT NOT NULL,
    tenant TEXT,
    actor TEXT NOT NULL,
    api_key TEXT,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    origin TEXT,
    request TEXT,
    outcome TEXT NOT NULL,
    detail TEXT,
    hash TEXT NOT NULL,
    PRIMARY KEY (node, seq)
);
CREATE INDEX audit_by_time ON audit (time, node, seq);
CREATE INDEX audit_of_tenant ON audit (tenant, time, node, seq);
