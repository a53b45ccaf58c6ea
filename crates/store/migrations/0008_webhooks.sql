-- Who is told that a task has ended, what they were told, and what they answered.

CREATE TABLE webhook_endpoints (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (name),
    url TEXT NOT NULL,
    events TEXT NOT NULL,
    description TEXT NOT NULL,
    enabled BIGINT NOT NULL,
    sealed TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX webhook_endpoints_of_tenant ON webhook_endpoints (tenant, id);

-- Made with a task: which conversation waits for it. What it was told is noted here, so that nobody is told twice.
CREATE TABLE webhook_listeners (
    task TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    notify_url TEXT,
    created_at BIGINT NOT NULL,
    event TEXT,
    status TEXT,
    told_at BIGINT
);
CREATE INDEX webhook_listeners_told ON webhook_listeners (told_at) WHERE told_at IS NOT NULL;

CREATE TABLE webhook_deliveries (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    endpoint TEXT,
    url TEXT NOT NULL,
    event_type TEXT NOT NULL,
    event TEXT,
    subject TEXT NOT NULL,
    conversation TEXT,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    -- Since it was made or replayed.
    tries BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    -- Grows with every claim: whoever has an older one notes nothing any more.
    claim BIGINT NOT NULL,
    claimed_by TEXT,
    claimed_until BIGINT,
    last_status BIGINT,
    last_error TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_of_tenant ON webhook_deliveries (tenant, created_at, id);
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE webhook_attempts (
    delivery TEXT NOT NULL,
    number BIGINT NOT NULL,
    time BIGINT NOT NULL,
    took_ms BIGINT NOT NULL,
    status BIGINT,
    error TEXT,
    answer TEXT,
    PRIMARY KEY (delivery, number)
);
