//! The daemon as the host sees it: a process that is talked to over a socket.

mod bad_input;
mod execs;
mod journal;
mod ports;
mod streams;
mod support;
