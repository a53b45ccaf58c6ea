//! The only privileged process. It is small, single-threaded and static; it takes plans from the process that started
//! it and carries them out. It decides nothing: what a sandbox looks like is a value made elsewhere (`plan`).
//!
//! `serve` is its loop. A sandbox is born from an *embryo*, pid 1 of a sandbox that nobody has asked for yet: it waits in
//! its cgroup and namespaces. `furnish` makes its mounts, `cradle` confines it, and it becomes the guest daemon.

pub mod attempts;
pub mod cgroup;
pub mod counted;
mod cradle;
pub mod embryo;
mod error;
mod furnish;
mod idmap;
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
