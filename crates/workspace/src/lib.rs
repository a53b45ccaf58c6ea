//! Files that outlive sandboxes: what a tenant's assistants and workers share, and the directory of every task.
//!
//! A tenant has one tree:
//!
//! ```text
//! shared/{scripts,data,skills}                       workers see it read-only, at /workspace/shared
//! tasks/<task>/{prompt.md,context/,output/,…}        one worker has it read-write, at /task
//! history/                                           what was there before a file was written or deleted
//! staging/                                           what is being written or removed
//! ```
//!
//! Whatever a worker may have written is hostile: every path is resolved beneath a descriptor and never through a symbolic link, only
//! regular files are opened, and sizes, counts and depths have caps.

mod beneath;
mod fault;
mod glob;
mod history;
mod kind;
mod path;
mod remove;
mod shared;
pub mod skills;
mod staging;
mod tasks;
mod tree;
mod walk;

pub use history::Version;
pub use kind::kind_of_name;
pub use shared::{
    Condition, Content, Deleted, Entry, EntryKind, LARGEST_FILE, Listing, MOST_READ, Piece, Written,
};
pub use tasks::NewTask;
pub use tree::{SharedWorkspace, Tree};
