//! The gateway as clients inside of a sandbox see it, against origins on this host. Names and addresses of the outside
//! are made up, so that nothing leaves this machine.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod attacks;
mod control;
mod credentials;
mod faults;
mod names;
mod origin;
mod proxy;
mod websockets;
mod world;
