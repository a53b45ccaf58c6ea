//! What runs an AI coding agent inside a sandbox, and the words in which it is told what to do and tells what came of it.
//!
//! The words ([`Assignment`], [`Event`], [`Status`], [`Completion`]) are for the server too. The rest is `run-task`, the program
//! inside: [`run::run`] is the course of a task, [`agents`] has one file for each agent.

mod agents;
pub mod assignment;
pub mod completion;
pub mod event;
mod outputs;
mod process;
mod prompt;
mod record;
mod repo;
pub mod run;
mod skills;
pub mod status;
mod verdict;
pub mod webhook;

pub use agents::AGENTS;
pub use assignment::Assignment;
pub use completion::Completion;
pub use event::Event;
pub use process::Interruption;
pub use status::{OutputFile, Status};
