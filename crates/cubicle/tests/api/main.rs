//! The HTTP API as its users meet it: the built program, a data directory of its own, and requests.

#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

mod bad_input;
mod claude;
#[allow(dead_code, reason = "other suites use more of it")]
mod client;
mod clock;
mod code;
mod collector;
mod contexts;
mod databases;
mod disk;
mod egress;
mod environments;
mod execs;
mod files;
mod issuer;
mod leases;
mod logs;
mod metrics;
mod nodes;
mod ports;
mod redaction;
mod removed;
mod restart;
mod rights;
mod secrets;
mod settings;
mod system;
mod tasks;
mod tokens;
mod traces;
mod webhooks;
mod workspace;
