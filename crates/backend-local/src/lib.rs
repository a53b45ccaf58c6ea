//! Sandboxes from Linux namespaces on this host: a pure `plan` of what is to be made, and a launcher that makes it.

mod attempts;
mod backend;
mod host;
mod launcher;
mod plan;
mod probe;
mod state;

pub use backend::{LocalBackend, Options, Readiness};
pub use host::HostRoot;
pub use launcher::BINARY as LAUNCHER_BINARY;
pub use plan::{Planned, plan_sandbox, plan_template};
