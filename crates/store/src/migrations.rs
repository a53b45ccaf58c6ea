//! The schema, step by step. A database of an older version is brought forward; one of a newer version is left alone.

use cubicle_model::{Fault, Kind};

use crate::sql::{Sql, values};

/// Never changed once released; a new step is a new file.
pub(crate) const STEPS: [&str; 8] = [
    include_str!("../migrations/0001_control_plane.sql"),
    include_str!("../migrations/0002_artifacts.sql"),
    include_str!("../migrations/0003_execs_told.sql"),
    include_str!("../migrations/0004_refused_execs.sql"),
    include_str!("../migrations/0005_secrets_and_bills.sql"),
    include_str!("../migrations/0006_lease_egress.sql"),
    include_str!("../migrations/0007_worker_tasks.sql"),
    include_str!("../migrations/0008_webhooks.sql"),
];

/// To be run in one transaction: a process that ends half-way leaves the older version behind.
pub(crate) fn run(sql: &mut dyn Sql) -> Result<(), Fault> {
    sql.define("CREATE TABLE IF NOT EXISTS schema_steps (step BIGINT PRIMARY KEY)")?;
    let done = sql.number("SELECT COALESCE(MAX(step), 0) FROM schema_steps", &[])?;
    let done = usize::try_from(done).unwrap_or(usize::MAX);
    if done > STEPS.len() {
        let known = STEPS.len();
        let text =
            format!("the database was made by a newer version (schema {done}; this one knows {known})");
        return Err(Fault::new(Kind::Conflict, text)
            .hint("use that version again, or another database or data directory"));
    }
    for (number, step) in STEPS.iter().enumerate().skip(done) {
        for statement in statements(step) {
            sql.define(statement)?;
        }
        sql.run("INSERT INTO schema_steps (step) VALUES (?1)", values![number as u64 + 1])?;
    }
    Ok(())
}

fn statements(step: &str) -> impl Iterator<Item = &str> {
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with("--");
    step.split(";\n").map(str::trim).filter(move |statement| !statement.lines().all(is_comment))
}
