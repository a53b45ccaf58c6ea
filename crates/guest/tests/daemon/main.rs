//! The daemon as the host sees it: a process that is talked to over a socket.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test that uses them")]

mod bad_input;
mod building;
mod contexts;
mod differential;
mod execs;
mod execute;
mod journal;
mod ports;
mod programs;
mod streams;
mod support;
mod warm;
