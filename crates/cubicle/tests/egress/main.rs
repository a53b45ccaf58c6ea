//! The way out of a sandbox, from inside: attacks, real clients, faults, and what the owner of the work is told.
//!
//! Every test has a network of its own, in which a few threads are the internet.

#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

#[path = "../api/client.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod client;

mod accounts;
mod certificates;
mod clients;
mod credentials;
mod direct;
mod faults;
mod gateway;
mod inside;
mod inwards;
mod leaks;
mod names;
mod nameserver;
mod origin;
mod packages;
mod requests;
mod templates;
mod tunnels;
mod world;
