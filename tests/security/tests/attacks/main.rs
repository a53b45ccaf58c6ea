//! Attacks on sandboxes, each tried for real from inside, with a look at the host afterwards.
//!
//! Whatever cannot be tried on this host says `skipped:` with its reason and is counted by the test runner.

mod arena;
mod devices;
mod exhaustion;
mod files;
mod identity;
mod kernel;
mod mounts;
mod neighbours;
mod network;
mod output;
mod processes;
mod secrets;
mod timeouts;
