//! What a host gives to AI workers: the programs of the agents, installed once and mounted read-only, and `run-task`, the
//! worker that runs them inside.
//!
//! `agents/<agent>/<version>-<digest>/` in the data directory is one version of an agent, named by its contents; the file
//! `agents/<agent>/current` names the one that new tasks get. Nothing of an agent is run on the host.

mod catalog;
mod download;
mod install;
mod installed;
mod node;
mod program;
mod tree;
pub mod worker;

pub use catalog::{Known, find as known, names};
pub use download::Host;
pub use install::{Request, Source, Step, install};
pub use installed::{Installed, installed, list, remove, require};
