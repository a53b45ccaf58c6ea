//! The only `unsafe` of the project: one wrapper per system call that neither the standard library nor `rustix` has.
#![allow(unsafe_code)]

pub mod children;
pub mod clock;
pub mod clone;
pub mod credentials;
pub mod descriptors;
pub mod file_identity;
pub mod forbidden;
pub mod lock;
pub mod loopback;
pub mod memory;
pub mod mount;
pub mod seccomp;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod terminal;
