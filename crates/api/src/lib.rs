//! What goes over the wire of `/api/v1`: requests, answers and errors. JSON is snake_case, times are RFC 3339.

mod admin;
mod artifact;
#[cfg(feature = "client")]
pub mod client;
mod context;
mod egress;
mod error;
mod event;
mod exec;
mod execute;
mod file;
mod lease;
mod page;
mod sandbox;
mod schema;
mod secret;
mod seed;
mod task;
mod template;
mod tool;
mod webhook;
mod workspace;

pub use admin::{
    AuditEntry, AuditHead, CreateKey, CreateTenant, Health, Key, NewKey, Readiness, ReadinessCheck,
    ReplaceTenant, ShownToken, Tenant, WhoAmI,
};
pub use artifact::{Artifact, SignedUrl};
pub use context::{CellError, CellOutput, CellResult, Context, Contexts, CreateContext, ExecuteCell};
pub use egress::{Bill, BillLine, Bundle, Denial, Egress, Explain, Explanation, GivenSecrets, LeaseEgress};
pub use error::{Error, ErrorBody};
pub use event::Event;
pub use exec::{
    BytesText, CreateExec, CreateOneShot, Encoding, Exec, ExecState, OutputFrame, Resize, Result, Signal,
};
pub use execute::{
    CacheUse, CreateEnvironment, Environment, EnvironmentUsed, Environments, Execute, ExecutePlace,
    ExecuteStatus, Executed, FileReference, SandboxHealth,
};
pub use file::{Entry, EntryKind, Listing, Move, Unpacked};
pub use lease::{CreateLease, Lease, NewFile, QueuePlace};
pub use page::Page;
pub use sandbox::{PortLink, Sandbox, SandboxMetrics};
pub use secret::{Binding, PutSecret, Secret, SecretText};
pub use seed::{AcquireLease, AcquiredLease};
pub use task::{CreateTask, Task, TaskFile, TaskFileContent, TaskFiles, TaskResult, TaskUsage};
pub use template::{PutTemplate, Template};
pub use tool::{ResourceMetadata, ToolAnswer, ToolArguments, Tools};
pub use webhook::{
    ChangeWebhook, CreateWebhook, Delivery, DeliveryAttempt, NewWebhook, Webhook, WorkerCompletion,
    WorkerHeard,
};
pub use workspace::{
    CreateSkill, MoveShared, NewSkillFile, SharedDeleted, SharedFile, SharedFileKind, SharedFiles,
    SharedVersion, SharedVersions, SharedWritten, Skill, SkillFile, SkillRefused, SkillShown, Skills,
};

/// The header that makes a creation repeatable.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header that carries the id of a request, in both directions.
pub const REQUEST_ID: &str = "x-request-id";
