//! What runs an AI coding agent inside a sandbox, and the words in which it is told what to do and tells what came of it.

pub mod assignment;
pub mod completion;
pub mod event;
pub mod status;

pub use assignment::Assignment;
pub use completion::Completion;
pub use event::Event;
pub use status::{OutputFile, Status};
