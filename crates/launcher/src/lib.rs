//! The only privileged process. It is small, single-threaded and static; it takes plans from the process that started
//! it and carries them out. It decides nothing: what a sandbox looks like is a value made elsewhere (`plan`).
//!
//! `serve` is its loop. A sandbox is born from a *nurse*, a process that already sits in the sandbox's cgroup; the
//! nurse forks pid 1 into new namespaces, `cradle` furnishes them, and pid 1 becomes the guest daemon.

pub mod attempts;
pub mod cgroup;
mod cradle;
mod error;
mod idmap;
pub mod nurse;
pub mod plan;
mod readback;
pub mod seccomp;
mod serve;
pub mod slots;
mod template;
pub mod uids;
pub mod wire;

pub use error::Failed;
pub use serve::serve;
