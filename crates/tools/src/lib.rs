//! Tools that agents use: read, search and change files, run commands and code in a sandbox.
//!
//! Each tool is defined once ([`definitions`]) and done once ([`call`]), over a [`Bench`]: whatever has sandboxes. REST, MCP and
//! OpenAI's functions are faces of the same table.

pub mod bench;
mod call;
mod code;
mod definitions;
mod error;
mod execs;
mod faces;
mod guest;
pub mod mcp;
mod output;
pub mod workspace;

pub use bench::{Bench, CreateSandbox, Follow, Lifecycle, Output, SandboxShown, What, Workspace};
pub use call::{Quiet, Watch, call, call_without_sandbox};
pub use definitions::{Annotations, Definition, definition, definitions, lifecycle};
pub use error::ToolError;
pub use faces::{mcp_form, native_form, openai_form};
pub use guest::OverGuest;
