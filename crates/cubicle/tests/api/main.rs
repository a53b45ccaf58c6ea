//! The HTTP API as its users meet it: the built program, a data directory of its own, and requests.

#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

mod bad_input;
#[allow(dead_code, reason = "other suites use more of it")]
mod client;
mod execs;
mod files;
mod leases;
mod ports;
mod restart;
mod rights;
mod system;
