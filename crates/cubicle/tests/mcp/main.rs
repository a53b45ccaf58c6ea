//! Tools for agents as their users meet them: over REST, and over both transports of MCP in both eras of the protocol.

#[path = "../api/client.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod client;
#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

mod clients;
mod http;
mod rest;
mod rpc;
mod stdio;
