//! What the product talks about: ids, placements, limits, execs, receipts and errors.
//!
//! Nothing here reads a clock, a file, the environment or a random source: those are passed in, so that every
//! decision of the product is a value that a test can look at.

pub mod admission;
pub mod audit;
pub mod clock;
pub mod credential;
pub mod egress;
pub mod error;
pub mod event;
pub mod exec;
mod hexadecimal;
pub mod id;
pub mod isolation;
pub mod lease;
pub mod limits;
pub mod name;
pub mod placement;
pub mod pool;
pub mod principal;
pub mod receipt;
pub mod route;
pub mod sandbox;
pub mod secret;
pub mod task;
pub mod template;
pub mod tenant;
pub mod webhook;

pub use credential::CredentialBinding;
pub use error::{Fault, Kind};
pub use event::Event;
pub use exec::{Command, ExecSpec, Exit, Stdin, TtySize};
pub use hexadecimal::hexadecimal;
pub use id::{
    ArtifactId, DeliveryId, EventId, ExecId, InstanceId, KeyId, LeaseId, NodeId, ParseIdError, RequestId,
    SandboxId, TaskId, WebhookId,
};
pub use isolation::{Isolation, Trust};
pub use lease::{Lease, LeaseStatus};
pub use limits::{Limit, LimitRequest, Limits};
pub use name::{Name, UserName};
pub use placement::{
    Binding, FileToWrite, Lifetime, ListenAddress, Listener, Medium, Mount, Placement, Protocol, Root,
    SecretFile, SecretFileName, SecretsToGive,
};
pub use principal::{Principal, Proof, Scope};
pub use receipt::Receipt;
pub use sandbox::{Sandbox, SandboxState};
pub use secret::{SecretName, SecretSource};
pub use task::TaskStatus;
pub use template::{Reuse, Template, TemplateRef};
pub use tenant::{Quota, Tenant, Usage};

/// A moment, to the millisecond.
pub type Timestamp = jiff::Timestamp;
