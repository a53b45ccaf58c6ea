//! The command line over the API: commands of the built binary against a server of the same binary.

mod audit;
mod execs;
mod files;
#[path = "../host/mod.rs"]
#[expect(dead_code, reason = "other suites use more of it")]
mod host;
mod keys;
mod leases;
mod logs;
mod secrets;
mod server;
mod shell;
mod tasks;
mod webhooks;
