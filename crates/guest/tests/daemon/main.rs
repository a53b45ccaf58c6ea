//! The daemon as the host sees it: a process that is talked to over a socket.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test that uses them")]

mod bad_input;
mod contexts;
mod execs;
mod journal;
mod ports;
mod streams;
mod support;
