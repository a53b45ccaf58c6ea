//! Commands that look after a server: keys, tenants, templates, and what happened.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use cubicle_model::limits::ByteSize;
use cubicle_model::{KeyId, Scope, Timestamp};

use super::local::Shape;
use super::texts;
use crate::values::{Cores, Span};

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a key; its secret is printed this once
    #[command(after_help = texts::KEYS_CREATE)]
    Create(KeyCreate),
    /// List keys, without their secrets
    Ls(Shape),
    /// Revoke keys: from now on they open nothing
    Revoke(KeyRevoke),
}

#[derive(Debug, Args)]
pub(crate) struct KeyCreate {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// What you call it
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,

    /// What it may do: read, run, manage, act_for_others, admin; separated by commas
    #[arg(long = "scopes", value_name = "SCOPES", value_delimiter = ',', default_value = "read,run")]
    pub(crate) scopes: Vec<Scope>,

    /// The user it is for [default: yourself]
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// The tenant it is for; another one than your own only for administrators
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,

    /// When it ends: 12h, 30d [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires_in: Option<Span>,

    /// Requests it may make in a second
    #[arg(long, value_name = "N")]
    pub(crate) requests_per_second: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct KeyRevoke {
    /// The keys, as 'cubicle keys ls' shows them
    #[arg(value_name = "KEY", required = true)]
    pub(crate) ids: Vec<KeyId>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// List who did what, the newest last
    Ls(AuditLs),
    /// Print the whole log of every node, in the order of its chain, as lines of JSON
    Export,
    /// Print the newest entry of every node as JSON: keep it elsewhere, and a cut tail is noticed
    Heads,
    /// Recompute every chain, and compare it with heads that were kept
    #[command(after_help = texts::AUDIT_VERIFY)]
    Verify(AuditVerify),
}

#[derive(Debug, Args)]
pub(crate) struct AuditLs {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Only of this user
    #[arg(long, value_name = "NAME")]
    pub(crate) actor: Option<String>,

    /// Only this, as in exec.create
    #[arg(long, value_name = "ACTION")]
    pub(crate) action: Option<String>,

    /// Only what was done to this
    #[arg(long, value_name = "ID")]
    pub(crate) subject: Option<String>,

    /// Only from then on: 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Timestamp>,

    /// Only before then
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Timestamp>,

    /// The newest of them, at most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct AuditVerify {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Heads that 'cubicle audit heads' printed before
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) head: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Follow what happens; a server that is started again is waited for
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Events after this seq [default: all that are kept; with --follow only new ones]
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<i64>,

    /// Only of this object
    #[arg(long, value_name = "ID")]
    pub(crate) subject: Option<String>,

    /// Print every event as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Template {
    /// List templates
    Ls(Shape),
    /// Print a template as JSON
    Get(TemplateName),
    /// Make or replace a template
    #[command(after_help = texts::TEMPLATE_PUT)]
    Put(TemplatePut),
    /// Remove a template
    Rm(TemplateRm),
}

#[derive(Debug, Args)]
pub(crate) struct TemplateName {
    /// The template, as 'cubicle template ls' shows it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct TemplatePut {
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Its recipe in JSON or TOML, or - for JSON on standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Everybody's, and not the tenant's own; for administrators
    #[arg(long)]
    pub(crate) shared: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateRm {
    /// The template, as 'cubicle template ls' shows it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Everybody's, and not the tenant's own; for administrators
    #[arg(long)]
    pub(crate) shared: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tenant {
    /// Make a tenant
    #[command(after_help = texts::TENANT_CREATE)]
    Create(TenantSet),
    /// List tenants
    Ls(Shape),
    /// Change a tenant's quota and weight; what is not named stays as it is
    Set(TenantSet),
}

#[derive(Debug, Args)]
pub(crate) struct TenantSet {
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Leases at one time
    #[arg(long, value_name = "N")]
    pub(crate) leases: Option<u64>,

    /// Cores of all leases together
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<Cores>,

    /// Memory of all leases together
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// Execs at one time
    #[arg(long, value_name = "N")]
    pub(crate) execs: Option<u64>,

    /// Shares of what is scarce, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) weight: Option<u32>,
}
