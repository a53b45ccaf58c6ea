//! Sandboxes on the real kernel: the promises of every backend, and what is particular to this one.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod at_once;
mod bad_input;
mod code;
mod conformance;
mod endings;
mod everyday;
mod furnishing;
mod harness;
mod late_binding;
mod listeners;
mod ordinary_user;
mod workspaces;
